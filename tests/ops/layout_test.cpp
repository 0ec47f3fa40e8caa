// SPDX-License-Identifier: Apache-2.0
#include "ops/ops_testing.h"

namespace magi::testing {
namespace {

using LayoutTest = OpsTest;
MAGI2_BOTH_DTYPES(LayoutTest);

/// Value of a [T,H,W,C] tensor.
double at(const Tensor& x, std::int64_t t, std::int64_t h, std::int64_t w, std::int64_t c) {
  return doubles(x)[((t * x.dim(1) + h) * x.dim(2) + w) * x.dim(3) + c];
}

/// source(t,h,w,c) for every element of y.
template <typename Source>
void expect_elements(const Tensor& y, const Source& source) {
  const Doubles values = doubles(y);
  std::size_t i = 0;
  for (std::int64_t t = 0; t < y.dim(0); ++t)
    for (std::int64_t h = 0; h < y.dim(1); ++h)
      for (std::int64_t w = 0; w < y.dim(2); ++w)
        for (std::int64_t c = 0; c < y.dim(3); ++c) ASSERT_EQ(values[i++], source(t, h, w, c));
}

TEST_P(LayoutTest, ReplicateTime) {
  const Tensor x = random({3, 2, 3, 5}, 1);
  const Tensor y = ops_->replicate_time(x, 2, 1);
  EXPECT_EQ(y.shape(), (Shape{6, 2, 3, 5}));
  expect_elements(y, [&](auto t, auto h, auto w, auto c) {
    return at(x, std::clamp<std::int64_t>(t - 2, 0, 2), h, w, c);
  });
  EXPECT_TRUE(same_bytes(ops_->replicate_time(x, 0, 0), x));
}

TEST_P(LayoutTest, UpsampleNearest) {
  const Tensor x = random({2, 3, 2, 5}, 1);
  const Tensor y = ops_->upsample_nearest(x);
  EXPECT_EQ(y.shape(), (Shape{2, 6, 4, 5}));
  expect_elements(y, [&](auto t, auto h, auto w, auto c) { return at(x, t, h / 2, w / 2, c); });
}

TEST_P(LayoutTest, InterleaveTime) {
  const Tensor x = random({3, 2, 2, 6}, 1);
  const Tensor y = ops_->interleave_time(x);
  EXPECT_EQ(y.shape(), (Shape{6, 2, 2, 3}));
  expect_elements(y, [&](auto t, auto h, auto w, auto c) { return at(x, t / 2, h, w, (t % 2) * 3 + c); });
}

TEST_P(LayoutTest, UnpatchifyAndBack) {
  const std::int64_t p = 2;
  const Tensor x = random({2, 3, 2, 5 * p * p}, 1);
  const Tensor y = ops_->unpatchify(x, p);
  EXPECT_EQ(y.shape(), (Shape{2, 6, 4, 5}));
  expect_elements(y, [&](auto t, auto h, auto w, auto c) {
    const auto q = h % p, r = w % p;
    return at(x, t, h / p, w / p, (c * p + r) * p + q);
  });
  EXPECT_TRUE(same_bytes(ops_->patchify(y, p), x));
}

}  // namespace
}  // namespace magi::testing
