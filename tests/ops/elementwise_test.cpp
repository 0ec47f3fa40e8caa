// SPDX-License-Identifier: Apache-2.0
#include "ops/ops_testing.h"

namespace magi::testing {
namespace {

using ElementwiseTest = OpsTest;
MAGI2_BOTH_DTYPES(ElementwiseTest);

TEST_P(ElementwiseTest, EmbedTakesRows) {
  const Tensor table = random({11, 7}, 1);
  const std::vector<std::int32_t> ids{10, 0, 3, 3};
  const Tensor y = ops_->embed(table, Tensor::of<std::int32_t>(ids, {4}));
  for (std::int64_t i = 0; i < 4; ++i) EXPECT_TRUE(same_bytes(y.rows(i, 1), table.rows(ids[i], 1)));
  EXPECT_EQ(ops_->embed(table, Tensor::empty(DType::i32, {0})).shape(), (Shape{0, 7}));
}

TEST_P(ElementwiseTest, TimeFeaturesByNoise) {
  const Segments segments = mixed_segments(40);
  const Tensor before = random({40, 9}, 1), features = random_f32({2, 4}, 2);
  Tensor x = before.clone();
  ops_->set_time_features(x, features, segments);
  for (std::int64_t row = 0; row < 40; ++row) {
    const Tensor wanted = features.rows(segment_of(segments, row).noised ? 1 : 0, 1).to(dtype());
    EXPECT_TRUE(same_bytes(x.rows(row, 1).columns(0, 4), wanted));
    EXPECT_TRUE(same_bytes(x.rows(row, 1).columns(4, 5), before.rows(row, 1).columns(4, 5)));
  }
}

TEST_P(ElementwiseTest, CastRoundsOnce) {
  const Tensor x = random({33, 1000}, 1);
  for (const DType to : {DType::f32, DType::bf16}) {
    EXPECT_TRUE(same_bytes(ops_->cast(x, to), x.to(to)));
    EXPECT_TRUE(same_bytes(ops_->cast(x.columns(3, 21), to), x.columns(3, 21).clone().to(to)));
  }
  EXPECT_EQ(ops_->cast(random({0, 5}, 1), DType::bf16).shape(), (Shape{0, 5}));
}

TEST_P(ElementwiseTest, CopyBetweenColumns) {
  for (const std::int64_t width : {1, 8, 21}) {
    const Tensor from = random({33, 40}, 1), before = random({33, 50}, 2);
    const Tensor to = before.clone();
    ops_->copy(to.columns(16, width), from.columns(8, width));
    EXPECT_TRUE(same_bytes(to.columns(16, width).clone(), from.columns(8, width).clone()));
    EXPECT_TRUE(same_bytes(to.columns(0, 16).clone(), before.columns(0, 16).clone()));
    EXPECT_TRUE(same_bytes(to.columns(16 + width, 34 - width).clone(),
                           before.columns(16 + width, 34 - width).clone()));
  }
}

TEST_P(ElementwiseTest, AddIntoTheFirst) {
  const Tensor b = random({17, 23}, 2).columns(1, 21);
  for (const DType accumulator : {DType::f32, dtype()}) {
    Tensor a = random_tensor(accumulator, {17, 21}, 1);
    const Doubles x = doubles(a), y = doubles(b);
    ops_->add(a, b);
    const Doubles sum = doubles(a);
    for (std::size_t i = 0; i < x.size(); ++i) ASSERT_EQ(sum[i], stored(accumulator, x[i] + y[i]));
  }
}

void expect_snake(Ops& ops, const Tensor& x, const Tensor& alpha, const Tensor& beta) {
  const Doubles in = doubles(x), a = doubles(alpha), b = doubles(beta);
  Doubles expected(in.size());
  for (std::size_t i = 0; i < in.size(); ++i) {
    // the angle's own rounding is magnified by the sine's slope: take it as f32 has it
    const std::size_t channel = i % a.size();
    const float angle = static_cast<float>(in[i]) * std::exp(static_cast<float>(a[channel]));
    expected[i] = in[i] + std::pow(std::sin(static_cast<double>(angle)), 2) / (std::exp(b[channel]) + 1e-9);
  }
  EXPECT_LT(relative_error(ops.snake(x, alpha, beta), expected), tolerance(x.dtype()));
}

TEST_P(ElementwiseTest, Snake) {
  const Tensor x = random({1, 1, 40, 19}, 1, 20.0f);
  const Tensor alpha = random_f32({19}, 2), beta = random_f32({19}, 3);
  expect_snake(*ops_, x, alpha, beta);
  Tensor beyond_the_fast_sine = alpha.clone(), tiny = beta.clone();
  beyond_the_fast_sine.data<float>()[5] = 14.0f;
  expect_snake(*ops_, x, beyond_the_fast_sine, beta);
  tiny.data<float>()[6] = -30.0f;  // the 1e-9 counts
  expect_snake(*ops_, x, alpha, tiny);
}

TEST_P(ElementwiseTest, PixelsAreClampedAndFloored) {
  const float nan = std::nanf("");
  const std::vector<float> x{-1.0f, 1.0f, 0.0f, 5.0f, -INFINITY, INFINITY, nan, 0.5f, -0.99609375f};
  const std::vector<std::uint8_t> expected{0, 255, 127, 255, 0, 255, 0, 191, 0};
  const Tensor y = ops_->to_pixels(Tensor::of<float>(x, {3, 3}).to(dtype()));
  for (std::size_t i = 0; i < x.size(); ++i) EXPECT_EQ(y.values<std::uint8_t>()[i], expected[i]) << x[i];
}

TEST_P(ElementwiseTest, Tanh) {
  const Tensor x = random({50, 3}, 1, 3.0f);
  Doubles expected = doubles(x);
  for (double& v : expected) v = std::tanh(v);
  EXPECT_LT(relative_error(ops_->tanh(x), expected), tolerance(dtype()));
}

}  // namespace
}  // namespace magi::testing
