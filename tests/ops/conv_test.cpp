// SPDX-License-Identifier: Apache-2.0
#include "ops/ops_testing.h"

namespace magi::testing {
namespace {

using ConvTest = OpsTest;
MAGI2_BOTH_DTYPES(ConvTest);

using Index3 = std::array<std::int64_t, 3>;

struct Case {
  Index3 size;
  std::int64_t in, out;
  Shape kernel;
  ConvOptions options;
  bool depthwise = false, transposed = false;
};

Index3 kernel_of(const Shape& kernel) {
  Index3 k{1, 1, 1};
  std::copy(kernel.begin(), kernel.end(), k.end() - static_cast<std::ptrdiff_t>(kernel.size()));
  return k;
}

/// By scattering: every input cell times every tap goes to the output that it belongs to.
Doubles reference(const Case& c, const Tensor& x, const Tensor& weight, const Tensor& bias,
                  const Shape& out) {
  const Doubles in = doubles(x), w = doubles(weight), b = doubles(bias);
  const Index3 k = kernel_of(c.kernel);
  const std::int64_t taps = k[0] * k[1] * k[2];
  const ConvOptions& o = c.options;
  Doubles y(numel(out));
  for (std::size_t i = 0; i < y.size(); ++i) y[i] = b[i % c.out];
  for (std::int64_t cell = 0; cell < c.size[0] * c.size[1] * c.size[2]; ++cell) {
    const Index3 at{cell / (c.size[1] * c.size[2]), cell / c.size[2] % c.size[1], cell % c.size[2]};
    for (std::int64_t tap = 0; tap < taps; ++tap) {
      const Index3 offset{tap / (k[1] * k[2]), tap / k[2] % k[1], tap % k[2]};
      Index3 to{};
      bool valid = true;
      for (std::size_t a = 0; a < 3; ++a) {
        if (c.transposed) {
          to[a] = at[a] * o.stride[a] + offset[a] * o.dilation[a] - o.pad_front[a];
        } else {
          const std::int64_t p = at[a] + o.pad_front[a] - offset[a] * o.dilation[a];
          valid = valid && p % o.stride[a] == 0;
          to[a] = p / o.stride[a];
          valid = valid && p >= 0;
        }
        valid = valid && to[a] >= 0 && to[a] < out[a];
      }
      if (!valid) continue;
      double* target = y.data() + ((to[0] * out[1] + to[1]) * out[2] + to[2]) * c.out;
      for (std::int64_t m = 0; m < c.out; ++m)
        for (std::int64_t n = 0; n < c.in; ++n) {
          if (c.depthwise && m != n) continue;
          const std::int64_t index = c.depthwise ? m : c.transposed ? n * c.out + m : m * c.in + n;
          target[m] += in[cell * c.in + n] * w[index * taps + tap];
        }
    }
  }
  return y;
}

void expect_conv(Ops& ops, DType dtype, const Case& c, const Shape& expected_shape) {
  const Tensor x = random_tensor(dtype, {c.size[0], c.size[1], c.size[2], c.in}, 1);
  Shape weight_shape = c.transposed ? Shape{c.in, c.out} : Shape{c.out, c.depthwise ? 1 : c.in};
  weight_shape.insert(weight_shape.end(), c.kernel.begin(), c.kernel.end());
  const Tensor weight = random_tensor(dtype, weight_shape, 2), bias = random_tensor(DType::f32, {c.out}, 3);
  const ConvWeight packed = ops.pack_conv(weight, bias, c.depthwise, c.transposed, dtype);
  omp_set_num_threads(2);
  const Tensor y = ops.conv(x, packed, c.options);
  ASSERT_EQ(y.shape(), expected_shape);
  EXPECT_LT(relative_error(y, reference(c, x, weight, bias, y.shape())), tolerance(dtype));
  omp_set_num_threads(1);
  EXPECT_TRUE(same_bytes(y, ops.conv(x, packed, c.options))) << "one and two threads differ";
}

TEST_P(ConvTest, ThreeAxes) {
  expect_conv(*ops_, dtype(), {{3, 9, 11}, 5, 7, {3, 3, 3}, {.pad_front = {1, 1, 1}, .pad_back = {1, 1, 1}}},
              {3, 9, 11, 7});
  expect_conv(*ops_, dtype(), {{4, 8, 8}, 33, 70, {3, 3, 3}, {.pad_front = {2, 1, 1}, .pad_back = {0, 1, 1}}},
              {4, 8, 8, 70});
  expect_conv(*ops_, dtype(), {{5, 2, 3}, 6, 4, {3, 1, 1}, {.stride = {2, 1, 1}}}, {2, 2, 3, 4});
  expect_conv(*ops_, dtype(), {{1, 1, 1}, 6, 4, {1, 1, 1}, {}}, {1, 1, 1, 4});
}

TEST_P(ConvTest, TwoAxesWithStride) {
  expect_conv(*ops_, dtype(), {{2, 8, 6}, 3, 5, {3, 3}, {.stride = {1, 2, 2}, .pad_back = {0, 1, 1}}},
              {2, 4, 3, 5});
  expect_conv(*ops_, dtype(),
              {{1, 7, 9}, 3, 5, {2, 3}, {.stride = {1, 3, 2}, .dilation = {1, 2, 2}, .pad_front = {0, 0, 3}}},
              {1, 2, 4, 5});
}

TEST_P(ConvTest, OneAxisWithDilation) {
  for (const std::int64_t dilation : {1, 3, 9})
    expect_conv(
        *ops_, dtype(),
        {{1, 1, 83},
         6,
         10,
         {7},
         {.dilation = {1, 1, dilation}, .pad_front = {0, 0, 3 * dilation}, .pad_back = {0, 0, 3 * dilation}}},
        {1, 1, 83, 10});
}

TEST_P(ConvTest, Depthwise) {
  expect_conv(*ops_, dtype(),
              {{3, 5, 6}, 19, 19, {3, 3, 3}, {.pad_front = {0, 1, 1}, .pad_back = {0, 1, 1}}, true},
              {1, 5, 6, 19});
  expect_conv(*ops_, dtype(), {{2, 5, 6}, 8, 8, {1, 1, 1}, {}, true}, {2, 5, 6, 8});
}

TEST_P(ConvTest, Transposed) {
  const auto pads = [](std::int64_t stride, std::int64_t pad, std::int64_t back) {
    return ConvOptions{.stride = {1, 1, stride}, .pad_front = {0, 0, pad}, .pad_back = {0, 0, back}};
  };
  expect_conv(*ops_, dtype(), {{1, 1, 9}, 6, 4, {4}, pads(2, 1, 1), false, true}, {1, 1, 18, 4});
  expect_conv(*ops_, dtype(), {{1, 1, 150}, 6, 4, {16}, pads(8, 4, 4), false, true}, {1, 1, 1200, 4});
  expect_conv(*ops_, dtype(), {{1, 1, 150}, 6, 40, {16}, pads(8, 4, 4), false, true},
              {1, 1, 1200, 40});  // parts of several column tiles
  expect_conv(*ops_, dtype(), {{2, 3, 70}, 6, 34, {5}, pads(3, 0, 2), false, true}, {2, 3, 210, 34});
  expect_conv(*ops_, dtype(), {{1, 1, 5}, 6, 4, {2}, pads(3, 0, 0), false, true},
              {1, 1, 14, 4});  // gaps get the bias
  expect_conv(*ops_, dtype(), {{1, 1, 5}, 6, 4, {7}, pads(1, 6, 0), false, true}, {1, 1, 5, 4});
  ConvOptions dilated = pads(2, 1, 0);
  dilated.dilation = {1, 1, 3};
  expect_conv(*ops_, dtype(), {{1, 1, 90}, 2, 3, {4}, dilated, false, true}, {1, 1, 187, 3});
}

TEST_P(ConvTest, CellsAreIndependent) {
  const Tensor x = random({1000, 1, 1, 30}, 1);
  const ConvWeight w = ops_->pack_conv(random({70, 30, 1}, 2), {}, false, false, dtype());
  expect_rows_independent(
      [&](std::int64_t first, std::int64_t count) { return ops_->conv(x.rows(first, count), w, {}); });

  const Tensor grid = random({9, 4, 7, 10}, 3);
  const ConvWeight w3 = ops_->pack_conv(random({12, 10, 3, 3, 3}, 4), {}, false, false, dtype());
  EXPECT_TRUE(same_bytes(ops_->conv(grid, w3, {}).rows(4, 2), ops_->conv(grid.rows(4, 4), w3, {})));
}

TEST_P(ConvTest, NoInputAndWrongWeights) {
  const ConvWeight w = ops_->pack_conv(random({7, 5, 1, 1}, 1), {}, false, false, dtype());
  EXPECT_THROW(ops_->conv(random({1, 1, 1, 4}, 1), w, {}), Error);
  EXPECT_THROW(ops_->pack_conv(random({7, 5}, 1), {}, false, false, dtype()), Error);
  EXPECT_THROW(ops_->pack_conv(random({7, 5, 3}, 1), {}, true, false, dtype()), Error);
  EXPECT_THROW(ops_->pack_conv(random({7, 5, 3, 3}, 1), {}, false, true, dtype()), Error);
  EXPECT_THROW(ops_->pack_conv(random({7, 5, 3}, 1), random({5}, 2), false, false, dtype()), Error);
  const ConvWeight wide = ops_->pack_conv(random({7, 5, 3, 3}, 1), {}, false, false, dtype());
  EXPECT_THROW(ops_->conv(random({1, 2, 8, 5}, 1), wide, {}), Error);
  EXPECT_THROW(ops_->conv(random({1, 8, 8, 5}, 1), wide, {.stride = {1, 0, 1}}), Error);
  EXPECT_THROW(ops_->conv(random({1, 8, 8, 5}, 1), wide, {.dilation = {1, 1, INT64_MAX}}), Error);
  EXPECT_THROW(ops_->conv(random({1, 8, 8, 5}, 1), wide, {.pad_front = {0, 0, INT64_MAX}}), Error);
}

TEST(PackConv, ADryRunLooksAtNoValue) {
  Arena arena = Arena::counting({});
  const auto ops = make_cpu_ops(arena);
  const auto nowhere = [](Shape shape) { return Tensor::view(nullptr, DType::f32, std::move(shape)); };
  const ConvWeight depthwise = ops->pack_conv(nowhere({100, 1, 3, 5, 5}), {}, true, false, DType::bf16);
  EXPECT_EQ(ops->held().bytes, 100u * 75 * sizeof(float));
  const ConvWeight dense = ops->pack_conv(nowhere({8192, 8192, 3, 3, 3}), {}, false, false, DType::bf16);
  const ConvWeight transposed = ops->pack_conv(nowhere({8192, 8192, 1000}), {}, false, true, DType::f32);
  EXPECT_GT(ops->held().bytes, std::size_t{8192} * 8192 * (27 * 2 + 1000 * 4));
}

}  // namespace
}  // namespace magi::testing
