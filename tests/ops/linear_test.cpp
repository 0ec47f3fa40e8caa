// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <cmath>

#include "ops/cpu/gemm.h"
#include "ops_testing.h"
#include "support/expect_error.h"

namespace magi::testing {
namespace {

double silu_of(double x) {
  return x / (1 + std::exp(-x));
}

double swiglu7_of(double a, double b) {
  a = std::min(a, 7.0);
  b = std::clamp(b, -7.0, 7.0);
  return a / (1 + std::exp(-1.702 * a)) * (b + 1);
}

/// Row by row from double-precision products; a gated epilogue of bf16 starts from rounded products.
Doubles linear_of(const Tensor& x, const Tensor& weight, const Tensor& bias, int groups,
                  const Segments& segments, Epilogue epilogue) {
  const std::int64_t rows = x.dim(0), in = x.dim(1), out = weight.dim(0) / groups;
  const Doubles xs = doubles(x), ws = doubles(weight), bs = bias.defined() ? doubles(bias) : Doubles{};
  Doubles y;
  for (std::int64_t r = 0; r < rows; ++r) {
    const std::int64_t group = groups == 1 ? 0 : static_cast<std::int64_t>(segment_of(segments, r).modality);
    Doubles product;
    for (std::int64_t o = 0; o < out; ++o) {
      double sum = bias.defined() ? bs[static_cast<std::size_t>(group * out + o)] : 0.0;
      for (std::int64_t i = 0; i < in; ++i) {
        sum += xs[static_cast<std::size_t>(r * in + i)] *
               ws[static_cast<std::size_t>((group * out + o) * in + i)];
      }
      product.push_back(epilogue == Epilogue::none ? sum : stored(x.dtype(), sum));
    }
    if (epilogue == Epilogue::none) {
      y.insert(y.end(), product.begin(), product.end());
      continue;
    }
    for (std::size_t o = 0; o < product.size(); o += 2) {
      const double a = product[o], b = product[o + 1];
      y.push_back(epilogue == Epilogue::swiglu7 ? swiglu7_of(a, b) : silu_of(a) * b);
    }
  }
  return y;
}

using LinearTest = OpsTest;

TEST_P(LinearTest, EqualsDoublePrecision) {
  struct Case {
    std::int64_t rows, in, out;
  };
  unsigned seed = 1;
  for (const Case c :
       {Case{1, 1, 1}, {5, 7, 3}, {64, 32, 64}, {65, 33, 24}, {130, 520, 140}, {33, 1100, 66}}) {
    for (const bool with_bias : {false, true}) {
      for (const Epilogue epilogue : {Epilogue::none, Epilogue::swiglu7, Epilogue::silu_gate}) {
        if (epilogue != Epilogue::none && c.out % 2 != 0) continue;
        const Tensor x = random({c.rows, c.in}, ++seed);
        const Tensor weight = random({c.out, c.in}, ++seed, 2.0f / std::sqrt(static_cast<float>(c.in)));
        const Tensor bias = with_bias ? random_f32({c.out}, ++seed) : Tensor();
        const LinearWeight w = ops_->pack_linear(weight, 1, dtype(), bias);
        const Doubles expected = linear_of(x, weight, bias, 1, {}, epilogue);
        // A bf16 product near a rounding boundary may round the other way before the gate.
        const double slack = epilogue == Epilogue::none ? 1 : 2;
        EXPECT_LT(relative_error(ops_->linear(x, w, epilogue), expected), slack * tolerance(dtype()))
            << c.rows << "×" << c.in << "×" << c.out << " bias " << with_bias << " epilogue "
            << static_cast<int>(epilogue);
        if (epilogue == Epilogue::none) {
          EXPECT_LT(relative_error(ops_->linear(x, w, {}, DType::f32), expected), tolerance(DType::f32));
        }
      }
    }
  }
}

TEST_P(LinearTest, GatesStartFromTheProductInTheWorkDtype) {
  const Tensor x = random({40, 64}, 1);
  const LinearWeight w = ops_->pack_linear(random({48, 64}, 2, 0.2f), 1, dtype());
  const Doubles product = doubles(ops_->linear(x, w));
  Doubles swiglu7, silu_gate;
  for (std::size_t i = 0; i < product.size(); i += 2) {
    swiglu7.push_back(stored(dtype(), swiglu7_of(product[i], product[i + 1])));
    silu_gate.push_back(stored(dtype(), silu_of(product[i]) * product[i + 1]));
  }
  EXPECT_LT(relative_error(ops_->linear(x, w, Epilogue::swiglu7), swiglu7), 2e-4);
  EXPECT_LT(relative_error(ops_->linear(x, w, Epilogue::silu_gate), silu_gate), 2e-4);
}

TEST_P(LinearTest, SegmentsChooseTheMatrix) {
  const Segments segments = mixed_segments(150);
  const Tensor x = random({150, 96}, 1), weight = random({3 * 40, 96}, 2, 0.2f), bias = random_f32({120}, 3);
  const LinearWeight w = ops_->pack_linear(weight, 3, dtype(), bias);
  const Tensor y = ops_->linear(x, w, segments, DType::f32);
  EXPECT_LT(relative_error(y, linear_of(x, weight, bias, 3, segments, Epilogue::none)),
            tolerance(DType::f32));
}

TEST_P(LinearTest, ReadsRowsWithAPitchAndWeightsOfAnyDtype) {
  const Tensor wide = random({70, 100}, 1);
  const Tensor x = wide.columns(20, 64);
  const Tensor weight = random_tensor(DType::bf16, {48, 64}, 2, 0.2f);
  for (const DType stored_as : {DType::bf16, DType::f32, DType::f64}) {
    const LinearWeight w = ops_->pack_linear(weight.to(stored_as), 1, dtype());
    const Doubles expected = linear_of(x.clone(), weight, {}, 1, {}, Epilogue::none);
    EXPECT_LT(relative_error(ops_->linear(x, w), expected), tolerance(dtype()));
  }
}

TEST_P(LinearTest, NoRowsGiveNoRows) {
  const LinearWeight w = ops_->pack_linear(random({3 * 8, 16}, 1), 3, dtype());
  EXPECT_EQ(ops_->linear(random({0, 16}, 2), w, {{0, Modality::text, 0, 0, false}}, dtype()).shape(),
            Shape({0, 8}));
}

TEST_P(LinearTest, WritesIntoRowsOfALargerTensor) {
  const Tensor x = random({9, 32}, 1), weight = random({10, 32}, 2, 0.2f);
  const LinearWeight w = ops_->pack_linear(weight, 1, dtype());
  Tensor whole = Tensor::zeros(DType::f32, {20, 10});
  ops_->linear_into(whole.rows(5, 9), x, w);
  EXPECT_LT(relative_error(whole.rows(5, 9), linear_of(x, weight, {}, 1, {}, Epilogue::none)),
            tolerance(DType::f32));
  for (const std::int64_t row : {4, 14}) {
    for (const double v : doubles(whole.rows(row, 1))) EXPECT_EQ(v, 0);
  }
}

TEST_P(LinearTest, AddsToRowsOfALargerTensor) {
  const Segments segments = mixed_segments(150);
  const Tensor x = random({150, 96}, 1), weight = random({3 * 40, 96}, 2, 0.2f);
  const LinearWeight w = ops_->pack_linear(weight, 3, dtype());
  for (const DType y_dtype : {DType::bf16, DType::f32}) {
    if (y_dtype == DType::bf16 && dtype() == DType::f32) continue;
    const Tensor whole = random_f32({160, 40}, 4).to(y_dtype), expected = whole.clone();
    ops_->add(expected.rows(5, 150), ops_->linear(x, w, segments, y_dtype));
    ops_->linear_add(whole.rows(5, 150), x, w, segments);
    EXPECT_TRUE(same_bytes(whole, expected)) << name_of(y_dtype);
  }
}

TEST_P(LinearTest, RowsAreIndependent) {
  for (const std::int64_t in : {100, 256, 1536}) {
    const Tensor x = random({1000, in}, 1), weight = random({3 * 66, in}, 2, 0.1f);
    const LinearWeight w = ops_->pack_linear(weight, 3, dtype(), random_f32({3 * 66}, 3));
    const Segments segments = mixed_segments(1000);
    for (const Epilogue epilogue : {Epilogue::none, Epilogue::swiglu7}) {
      expect_rows_independent([&](std::int64_t first, std::int64_t count) {
        return ops_->linear(x.rows(first, count), w, clipped(segments, first, count), dtype(), epilogue);
      });
    }
  }
}

TEST_P(LinearTest, RefusesWrongInput) {
  const LinearWeight w = ops_->pack_linear(random({6, 16}, 1), 1, dtype());
  expect_error([&] { ops_->linear(random({4, 15}, 2), w); }, "linear: x is [4,15], expected [-1,16]");
  expect_error([&] { ops_->linear(random({4, 16}, 2).to(DType::f64), w); }, "linear: x is f64");
  expect_error(
      [&] {
        ops_->linear(random({4, 16}, 2), w, {{0, Modality::text, 0, 3, false}}, dtype());
      },
      "segments hold 3 rows");
  const LinearWeight odd = ops_->pack_linear(random({5, 16}, 1), 1, dtype());
  expect_error([&] { ops_->linear(random({4, 16}, 2), odd, Epilogue::swiglu7); }, "even number");
  expect_error([&] { ops_->pack_linear(random({5, 16}, 1), 3, dtype()); }, "pack_linear: weight [5,16]");
  expect_error([&] { ops_->linear(random({4, 16}, 2), w, Epilogue::add); }, "linear_add is what adds");
  expect_error([&] { ops_->linear_add(random({4, 5}, 3), random({4, 16}, 2), w, {}); }, "y is [4,5]");
  const LinearWeight biased = ops_->pack_linear(random({6, 16}, 1), 1, dtype(), random_f32({6}, 2));
  expect_error([&] { ops_->linear_add(random({4, 6}, 3), random({4, 16}, 2), biased, {}); }, "a bias");
}

/// Also where the processor has no bf16 product and the kernel multiplies in f32.
TEST_P(LinearTest, WeightsStoredInF32AreRoundedToTheDtype) {
  const Tensor x = random({5, 48}, 1), stored = random_f32({40, 48}, 2);
  EXPECT_TRUE(same_bytes(ops_->linear(x, ops_->pack_linear(stored, 1, dtype())),
                         ops_->linear(x, ops_->pack_linear(stored.to(dtype()), 1, dtype()))));
}

MAGI2_BOTH_DTYPES(LinearTest);

/// The kernel that takes over where the library's does not keep rows apart.
TEST(GemmTest, PlainKernelEqualsTheLibrarys) {
  const std::int64_t k = 96, n = 64, rows = 17;
  const Tensor a = random_tensor(DType::f32, {kTileRows, k}, 1), b = random_tensor(DType::f32, {k, n}, 2);
  const auto plain = make_plain_kernel(k, n);
  const Gemm& gemm = Gemm::of(DType::f32, k, n);
  const auto product = [&](const auto& kernel, auto&& worker) {
    Tensor packed = Tensor::empty(DType::u8, {static_cast<std::int64_t>(kernel.packed_bytes())});
    kernel.pack(b.raw(), false, packed.raw());
    Tensor c = Tensor::empty(DType::f32, {kTileRows, n});
    worker(a.raw(), packed.raw(), c.template data<float>(), rows);
    return c.rows(0, rows);
  };
  const Tensor expected = product(gemm, Gemm::Worker(gemm));
  const auto worker = plain->worker();
  const Tensor actual = product(
      *plain, [&](const void* x, const void* w, float* y, std::int64_t r) { worker->run(x, w, y, r); });
  EXPECT_LT(relative_error(actual, doubles(expected)), 1e-6);
}

}  // namespace
}  // namespace magi::testing
