// SPDX-License-Identifier: Apache-2.0
#include "ops/nvfp4.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstring>

#include "ops_testing.h"
#include "support/expect_error.h"

namespace magi::testing {
namespace {

TEST(Nvfp4, EveryE2m1CodeIsWhatTheFormatDefines) {
  for (unsigned code = 0; code < 16; ++code) {
    // Sign, two bits of exponent with bias 1, one bit of mantissa; exponent 0 is subnormal.
    const int exponent = code >> 1 & 3;
    const double mantissa = (code & 1) / 2.0;
    const double magnitude = exponent == 0 ? mantissa : (1 + mantissa) * std::pow(2, exponent - 1);
    EXPECT_EQ(e2m1_value(code), code & 8 ? -magnitude : magnitude) << code;
    if (code != 8) {
      EXPECT_EQ(e2m1_code(e2m1_value(code)), code);
    }
  }
  EXPECT_EQ(e2m1_code(-0.0f), 0u);
  EXPECT_EQ(e2m1_code(1e30f), 7u);
  EXPECT_EQ(e2m1_code(-7), 15u);
}

TEST(Nvfp4, E2m1RoundsToNearestTiesToEven) {
  const std::pair<float, unsigned> ties[] = {{0.25f, 0}, {0.75f, 2}, {1.25f, 2}, {1.75f, 4},
                                             {2.5f, 4},  {3.5f, 6},  {5, 6}};
  for (const auto& [value, code] : ties) {
    EXPECT_EQ(e2m1_code(value), code);
    const auto above = static_cast<float>(std::nextafter(value, 9.0f)),
               below = static_cast<float>(std::nextafter(value, 0.0f));
    EXPECT_GT(e2m1_value(e2m1_code(above)), value);
    EXPECT_LT(e2m1_value(e2m1_code(below)), value);
  }
}

TEST(Nvfp4, EveryE4m3CodeIsWhatTheFormatDefines) {
  for (int code = 0; code < 256; ++code) {
    const auto byte = static_cast<std::uint8_t>(code);
    const int exponent = code >> 3 & 15, m = code & 7;
    const double magnitude =
        exponent == 0 ? m / 8.0 * std::pow(2, -6) : (1 + m / 8.0) * std::pow(2, exponent - 7);
    if ((code & 0x7f) == 0x7f) {
      EXPECT_TRUE(std::isnan(e4m3_value(byte)));
      continue;
    }
    EXPECT_EQ(e4m3_value(byte), code & 0x80 ? -magnitude : magnitude) << code;
    EXPECT_EQ(e4m3_code(e4m3_value(byte)), byte) << code;
    if (code >= 0x7e) continue;
    // Between neighbours: to the nearer one, from the middle to the even one.
    const float low = e4m3_value(byte), high = e4m3_value(static_cast<std::uint8_t>(code + 1)),
                middle = (low + high) / 2;
    EXPECT_EQ(e4m3_code(middle), code % 2 == 0 ? code : code + 1);
    EXPECT_EQ(e4m3_code(std::nextafter(middle, low)), code);
    EXPECT_EQ(e4m3_code(std::nextafter(middle, high)), code + 1);
  }
  EXPECT_EQ(e4m3_code(1e9f), 0x7e);
  EXPECT_EQ(e4m3_code(INFINITY), 0x7e);
}

struct Experts {
  Tensor gate, up, down;
};
Experts random_experts(std::int64_t n, std::int64_t dim, std::int64_t hidden, unsigned seed,
                       float scale = 0.02f) {
  return {random_tensor(DType::bf16, {n, dim, hidden}, seed, scale),
          random_tensor(DType::bf16, {n, dim, hidden}, seed + 1, scale),
          random_tensor(DType::bf16, {n, hidden, dim}, seed + 2, scale)};
}

/// Every value by the definition, one at a time, from the bytes.
float value_at(const std::byte* expert, const Nvfp4Layout& layout, ExpertMatrix m, std::int64_t k,
               std::int64_t n) {
  float matrix_scale;
  std::memcpy(&matrix_scale, expert + layout.matrix_scale_at(m), 4);
  std::uint32_t word;
  std::memcpy(&word, expert + layout.row_at(m, n, k / 16) + Nvfp4Layout::word_of(k / 16, k % 16), 4);
  const std::uint32_t half =
      Nvfp4Layout::pair(word, Nvfp4Layout::pair_of(k / 16, k % 16)) >> (k % 2 * 16) & 0xffffu;
  const auto scale = static_cast<std::uint8_t>(expert[layout.scale_at(m, n, k / 16)]);
  const double block_scale = (1 + scale % 8 / 8.0) * std::pow(2, scale / 8 - 9);
  return e2m1_value(half >> 12 | (half >> 6 & 7u)) * static_cast<float>(block_scale) * matrix_scale;
}

TEST(Nvfp4, WordsHoldFourPairsInSeparateBits) {
  std::mt19937 engine(5);
  std::uint32_t used = 0;
  for (int p = 0; p < 4; ++p) {
    const std::uint32_t bits = Nvfp4Layout::place(Nvfp4Layout::kPairBits, p);
    EXPECT_EQ(used & bits, 0u) << p;
    used |= bits;
  }
  EXPECT_EQ(used, 0xffffffffu);
  for (int i = 0; i < 1000; ++i) {
    const auto word = static_cast<std::uint32_t>(engine());
    std::uint32_t again = 0;
    for (int p = 0; p < 4; ++p) again |= Nvfp4Layout::place(Nvfp4Layout::pair(word, p), p);
    ASSERT_EQ(again, word);
  }
}

TEST(Nvfp4, EveryScaleHasAByte) {
  for (int code = 1; code < 0x7f; ++code) {
    const float scale = e4m3_value(static_cast<std::uint8_t>(code));
    EXPECT_EQ(Nvfp4Layout::scale(Nvfp4Layout::scale_byte(scale)), scale) << code;
  }
  EXPECT_EQ(Nvfp4Layout::scale_byte(0), 0);
  EXPECT_EQ(Nvfp4Layout::scale_byte(448), 142);
}

TEST(Nvfp4, LayoutUsesEveryByteOnce) {
  for (const Nvfp4Layout layout : {Nvfp4Layout{3, 256, 1280}, {1, 20, 40}, {2, 1, 1}, {5, 100, 17}}) {
    std::vector<int> used(static_cast<std::size_t>(layout.expert_bytes()));
    const auto take = [&](std::int64_t first, int bytes) {
      for (int i = 0; i < bytes; ++i) ++used.at(static_cast<std::size_t>(first + i));
    };
    for (const ExpertMatrix m : {ExpertMatrix::gate, ExpertMatrix::up, ExpertMatrix::down}) {
      take(layout.matrix_scale_at(m), 4);
      for (std::int64_t n = 0; n < layout.columns(m); ++n)
        for (std::int64_t b = 0; b < layout.blocks(m); ++b) {
          // Two blocks share a word.
          for (std::int64_t k = 0; b % 2 == 0 && k < 8; k += 2)
            take(layout.row_at(m, n, b) + Nvfp4Layout::word_of(b, k), 4);
          take(layout.scale_at(m, n, b), 1);
        }
    }
    EXPECT_EQ(*std::max_element(used.begin(), used.end()), 1);
    EXPECT_EQ(layout.expert_bytes() % 128, 0);
  }
  std::vector<int> nibbles(16);
  for (int k = 0; k < 16; ++k) ++nibbles.at(static_cast<std::size_t>(nvfp4_nibble(k)));
  EXPECT_EQ(nibbles, std::vector<int>(16, 1));
}

TEST(Nvfp4, DequantisedWeightsAreTheBytesValuesAndExactInBf16) {
  for (const Shape& s : {Shape{2, 32, 48}, {3, 20, 50}, {1, 1, 1}, {1, 600, 33}}) {
    const Experts e = random_experts(s[0], s[1], s[2], 1);
    const ExpertWeight w = nvfp4_experts(e.gate, e.up, e.down, 1, DType::bf16);
    const Nvfp4Layout layout = nvfp4_layout(w);
    const auto* bytes = static_cast<const std::byte*>(w.nvfp4.raw());
    const PlainExperts plain = dequantize_experts(bytes, s[0], layout);
    for (std::int64_t i = 0; i < s[0]; ++i) {
      const std::byte* expert = bytes + i * layout.expert_bytes();
      for (const ExpertMatrix m : {ExpertMatrix::gate, ExpertMatrix::up, ExpertMatrix::down}) {
        const Tensor& t = m == ExpertMatrix::gate ? plain.gate
                          : m == ExpertMatrix::up ? plain.up
                                                  : plain.down;
        const std::int64_t depth = layout.depth(m), columns = layout.columns(m), pitch = depth + 7;
        std::vector<float> floats(static_cast<std::size_t>(columns * pitch));
        dequantize_columns(expert, layout, m, 0, columns, floats.data(), pitch);
        for (std::int64_t k = 0; k < depth; ++k)
          for (std::int64_t n = 0; n < columns; ++n) {
            const float value = value_at(expert, layout, m, k, n);
            ASSERT_EQ(static_cast<float>(t.data<bf16>()[(i * depth + k) * columns + n]), value);
            ASSERT_EQ(floats[static_cast<std::size_t>(n * pitch + k)], value);
          }
        for (std::int64_t n = 0; n < columns; ++n)
          ASSERT_EQ(floats[static_cast<std::size_t>((n + 1) * pitch - 1)], 0);
      }
    }
  }
}

TEST(Nvfp4, GaussianWeightsLoseNineAndAHalfPercent) {
  for (const float scale : {1.0f, 0.02f, 3e-5f}) {
    Experts e = random_experts(2, 256, 1280, 5, scale);
    QuantError error;
    const Nvfp4Layout layout{2, 256, 1280};
    std::vector<std::byte> bytes(static_cast<std::size_t>(layout.head_bytes()));
    error = quantize_experts(e.gate, e.up, e.down, bytes.data());
    std::printf("RMS error of Gaussian weights of deviation %g: %.3f %%\n", scale,
                100 * error.relative_rms());
    EXPECT_NEAR(error.relative_rms(), 0.095, 0.003);
    const PlainExperts plain = dequantize_experts(bytes.data(), 2, layout);
    QuantError measured;
    for (const auto& [a, b] : {std::pair(e.gate, plain.gate), {e.up, plain.up}, {e.down, plain.down}}) {
      const Doubles x = doubles(a), y = doubles(b);
      for (std::size_t i = 0; i < x.size(); ++i) measured.add({(x[i] - y[i]) * (x[i] - y[i]), x[i] * x[i]});
    }
    EXPECT_NEAR(error.relative_rms(), measured.relative_rms(), 1e-6);
  }
}

/// Quantising what was quantised gives the same bytes.
void expect_stable(const Experts& e, const char* what) {
  const Nvfp4Layout layout{e.gate.dim(0), e.gate.dim(1), e.gate.dim(2)};
  std::vector<std::byte> first(static_cast<std::size_t>(layout.head_bytes())), second(first);
  quantize_experts(e.gate, e.up, e.down, first.data());
  const PlainExperts plain = dequantize_experts(first.data(), layout.experts, layout);
  const QuantError again = quantize_experts(plain.gate, plain.up, plain.down, second.data());
  EXPECT_EQ(again.squared_error, 0) << what;
  EXPECT_TRUE(first == second) << what;
}

TEST(Nvfp4, QuantisingAgainChangesNothing) {
  for (const float scale : {1.0f, 0.02f, 1e-6f, 1e-38f, 3e-40f, 1e35f})
    expect_stable(random_experts(3, 40, 56, 7, scale), std::to_string(scale).c_str());
  // Magnitudes over 30 powers of two in one matrix: blocks whose scale is a subnormal E4M3 number.
  Experts wide = random_experts(4, 64, 64, 9, 1);
  for (Tensor* t : {&wide.gate, &wide.up, &wide.down}) {
    *t = t->to(DType::f32);
    std::int64_t i = 0;
    for (float& v : t->values<float>()) v = std::ldexp(v, -static_cast<int>(i++ / 16 % 31));
  }
  expect_stable(wide, "wide");
}

/// One matrix [columns, 16·blocks] through quantize_matrix.
Doubles there_and_back(const std::vector<float>& values, std::int64_t depth) {
  const auto columns = static_cast<std::int64_t>(values.size()) / depth;
  const Tensor matrix = Tensor::of<float>(values, {columns, depth});
  return doubles(dequantize_matrix(quantize_matrix(matrix)));
}

TEST(Nvfp4, SpecialBlocksAreExactToTheFormatsRules) {
  // Zeros stay zeros, positive ones.
  for (const double v : there_and_back(std::vector<float>(48, -0.0f), 16))
    EXPECT_TRUE(v == 0 && !std::signbit(v));
  // A single outlier becomes 6 times an E4M3 number: exact where it is one, else within half a step of it.
  for (const float outlier : {6.0f, -1.5f, 0x1.8p-20f, 7.3f, -0.011f}) {
    std::vector<float> values(16);
    values[5] = outlier;
    const Doubles got = there_and_back(values, 16);
    for (std::size_t i = 0; i < 16; ++i) {
      if (i == 5)
        EXPECT_LE(std::abs(got[i] - outlier), std::abs(outlier) / 16) << outlier;
      else
        EXPECT_EQ(got[i], 0);
    }
    if (outlier != 7.3f && outlier != -0.011f) {
      EXPECT_EQ(got[5], outlier);
    }
  }
  // All equal: every one becomes the same, 6 times a scale.
  for (const float v : {3.0f, -0.375f, 0.1f, 1e-30f}) {
    const Doubles got = there_and_back(std::vector<float>(16, v), 16);
    for (const double g : got) EXPECT_EQ(g, got[0]);
    EXPECT_LE(std::abs(got[0] - v), std::abs(v) / 16);
    if (v == 3.0f || v == -0.375f) {
      EXPECT_EQ(got[0], v);
    }
  }
  // An outlier far above the rest of its block takes the block's scale; other blocks keep theirs.
  std::vector<float> values(32, 0.01f);
  values[3] = 100;
  const Doubles got = there_and_back(values, 32);
  EXPECT_EQ(got[0], 0);
  EXPECT_NEAR(got[3], 100, 100 / 16.0);
  EXPECT_NEAR(got[20], 0.01, 0.01 / 16);
  // Denormals: multiples of bf16's smallest number are kept where four bits can say them.
  const float least = 0x1p-133f;
  for (const double v : there_and_back(std::vector<float>(16, least), 16)) EXPECT_EQ(v, least);
  const Doubles steps = there_and_back(
      {0, least, 2 * least, 3 * least, 4 * least, 6 * least, 8 * least, -12 * least, 0, 0, 0, 0, 0, 0, 0, 0},
      16);
  EXPECT_EQ(steps[1], least);
  EXPECT_EQ(steps[3], 3 * least);
  EXPECT_EQ(steps[7], -12 * least);
  // Less than half of that is nothing.
  for (const double v : there_and_back(std::vector<float>(16, 0x1p-149f), 16)) EXPECT_EQ(v, 0);
}

TEST(Nvfp4, MatrixScalesArePowersOfTwo) {
  for (const float scale : {1.0f, 0.02f, 7e-9f, 1234.0f}) {
    const Nvfp4Matrix m = quantize_matrix(random_tensor(DType::f32, {40, 80}, 3, scale));
    int exponent;
    EXPECT_EQ(std::frexp(m.matrix_scale.data<float>()[0], &exponent), 0.5f);
    // No power of two is wasted: the largest block scale is in the upper binade of E4M3, or just below.
    std::uint8_t largest = 0;
    for (std::int64_t n = 0; n < 40; ++n)
      for (std::int64_t b = 0; b < 5; ++b)
        largest = std::max(largest, m.packed.data<std::uint8_t>()[n * 45 + 40 + b]);
    EXPECT_GE(e4m3_value(largest), 224);
  }
}

TEST(Nvfp4, EveryPairOfCodesSurvives) {
  // One block for each E4M3 scale, which holds all magnitudes; 448 fixes the matrix' scale at 1.
  for (int code = 1; code <= 0x7e; ++code) {
    const float scale = e4m3_value(static_cast<std::uint8_t>(code));
    std::vector<float> values(32);
    for (unsigned k = 0; k < 16; ++k) values[k] = e2m1_value(k) * scale;
    values[16] = 6 * 448;
    const Doubles got = there_and_back(values, 32);
    for (std::size_t i = 0; i < values.size(); ++i) ASSERT_EQ(got[i], values[i]) << code << ", value " << i;
    for (std::size_t i = 0; i < values.size(); ++i) ASSERT_EQ(static_cast<float>(bf16(values[i])), values[i]);
  }
}

TEST(Nvfp4, ThreadsAndDtypesChangeNothing) {
  const Experts e = random_experts(5, 48, 80, 11);
  const Nvfp4Layout layout{5, 48, 80};
  const int threads = omp_get_max_threads();
  std::vector<std::vector<std::byte>> results;
  for (const int n : {1, 2, 3}) {
    omp_set_num_threads(n);
    results.emplace_back(static_cast<std::size_t>(layout.head_bytes()));
    quantize_experts(e.gate, n == 3 ? e.up.to(DType::f32) : e.up, e.down, results.back().data());
  }
  omp_set_num_threads(threads);
  EXPECT_TRUE(results[0] == results[1] && results[0] == results[2]);
}

TEST(Nvfp4, RefusesWhatCannotBe) {
  Experts e = random_experts(2, 16, 32, 13);
  std::vector<std::byte> bytes(static_cast<std::size_t>(Nvfp4Layout{2, 16, 32}.head_bytes()));
  expect_error([&] { quantize_experts(e.gate, e.down, e.down, bytes.data()); }, "do not belong together");
  for (const float bad : {NAN, INFINITY, 1e37f}) {
    Tensor gate = e.gate.to(DType::f32);
    gate.data<float>()[16 * 32 + 3] = bad;
    expect_error([&] { quantize_experts(gate, e.up, e.down, bytes.data()); }, "a weight of expert 1");
    expect_error([&] { quantize_matrix(gate.reshape({64, 16})); }, "not finite");
  }
}

}  // namespace
}  // namespace magi::testing
