// SPDX-License-Identifier: Apache-2.0
#include "sample/refine.h"

#include "support/golden.h"

namespace magi {
namespace {

void check_start(const std::string& name) {
  GOLDEN_CASE(golden, name);
  const Tensor want = golden.get("upsampled");
  const Tensor upsampled = upsample_latent(golden.get("preview_latent"), want.dim(-2), want.dim(-1));
  expect_close(name + " upsampled", upsampled, want, 1e-5);
  expect_close(name + " renoised",
               renoise(upsampled, golden.get("noise"), std::stoll(golden.meta("noise_value"))),
               golden.get("renoised"), 1e-5);
  const auto table = zero_snr_table();
  expect_close(name + " table", Tensor::of<float>(table, {static_cast<std::int64_t>(table.size())}),
               golden.get("zero_snr_sigmas"), 1e-6);
}

TEST(GoldenRefine, StartF32) {
  check_start("refiner_sample_f32");
}
TEST(GoldenRefine, StartBf16) {
  check_start("refiner_sample_bf16");
}

TEST(Refine, TableEndsAtZero) {
  const auto table = zero_snr_table();
  EXPECT_NEAR(table[220], 0.83891, 5e-6);
  EXPECT_EQ(table.back(), 0);
}

TEST(Refine, CornersAreAligned) {
  const std::vector<float> values{0, 1, 2, 3, 10, 11, 12, 13};  // value = 10t + 2h + w
  const Tensor up = upsample_latent(Tensor::of<float>(values, {1, 2, 2, 2}), 3, 5);
  ASSERT_EQ(up.shape(), (Shape{1, 3, 3, 5}));
  for (int t = 0; t < 3; ++t)
    for (int h = 0; h < 3; ++h)
      for (int w = 0; w < 5; ++w)
        EXPECT_FLOAT_EQ(up.data<float>()[(t * 3 + h) * 5 + w], 5.0f * t + 1.0f * h + 0.25f * w);
  // One cell, one frame, and a smaller target.
  EXPECT_EQ(upsample_latent(Tensor::of<float>(values, {8, 1, 1, 1}), 1, 1).shape(), (Shape{8, 1, 1, 1}));
  EXPECT_EQ(upsample_latent(Tensor::of<float>(values, {1, 1, 2, 4}), 1, 1).data<float>()[0], 0);
}

TEST(Refine, RefusesBadUse) {
  const Tensor x = Tensor::zeros(DType::f32, {1, 2, 2, 2});
  EXPECT_THROW(upsample_latent(x, 0, 4), Error);
  EXPECT_THROW(upsample_latent(x.reshape({8}), 2, 4), Error);
  EXPECT_THROW(renoise(x, x, 1000), Error);
  EXPECT_THROW(renoise(x, x, -1), Error);
  EXPECT_THROW(renoise(x, x.reshape({8}), 1), Error);
}

}  // namespace
}  // namespace magi
