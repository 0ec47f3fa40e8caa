// SPDX-License-Identifier: Apache-2.0
// Each option against its formula, written out in double and one element at a time.
#include "sample/guidance.h"

#include <functional>

#include "sample/noise.h"
#include "support/golden.h"

namespace magi {
namespace {

constexpr std::int64_t kChannels = 6, kFrames = 5, kCells = 12;

struct Inputs {
  Tensor cond, uncond, latent;
};

Inputs inputs(const Shape& shape) {
  NoiseGenerator noise(21);
  return {noise.randn(shape), noise.randn(shape), noise.randn(shape)};
}

using Formula = std::function<double(double c, double u, double x, std::int64_t frame)>;

void expect_video(const GuidanceOptions& options, double timestep, const Formula& formula) {
  const Inputs in = inputs({1, kChannels, kFrames, 3, 4});
  const Tensor v = guide_video(in.cond, in.uncond, in.latent, timestep, options);
  Tensor want = Tensor::empty(DType::f32, v.shape());
  for (std::int64_t i = 0; i < v.numel(); ++i)
    want.data<float>()[i] = static_cast<float>(formula(in.cond.data<float>()[i], in.uncond.data<float>()[i],
                                                       in.latent.data<float>()[i], i / kCells % kFrames));
  EXPECT_LE(relative_l2(v, want), 1e-6);
}

TEST(Guidance, Plain) {
  GuidanceOptions options;
  expect_video(options, 700, [](double c, double u, double, std::int64_t) { return u + 5 * (c - u); });
  options.video_scale = 1.5f;
  expect_video(options, 1, [](double c, double u, double, std::int64_t) { return u + 1.5 * (c - u); });
}

TEST(Guidance, TrickLimitsTheFirstFrames) {
  GuidanceOptions options;
  options.trick = true;
  options.trick_frames = 2;
  expect_video(options, 700,
               [](double c, double u, double, std::int64_t f) { return u + (f < 2 ? 2 : 5) * (c - u); });
  options.video_scale = 1;
  expect_video(options, 700, [](double c, double, double, std::int64_t) { return c; });
  options.video_scale = 5;
  options.trick_frames = 99;
  expect_video(options, 700, [](double c, double u, double, std::int64_t) { return u + 2 * (c - u); });
}

TEST(Guidance, DynamicCutsBelowATimestep) {
  GuidanceOptions options;
  options.dynamic = true;
  expect_video(options, 500, [](double c, double u, double, std::int64_t) { return u + 5 * (c - u); });
  expect_video(options, 499, [](double c, double u, double, std::int64_t) { return u + 2 * (c - u); });
  options.video_scale = 1.25f;
  expect_video(options, 499, [](double c, double u, double, std::int64_t) { return u + 1.25 * (c - u); });
}

bool mask(double a, double b, double x, double w) {
  const auto sgn = [](double v) { return (v > 0) - (v < 0); };
  const double d = b + w * (a - b);
  return sgn(a - b) == sgn(a) && sgn(a) == sgn(w * a - (w - 1) * b) && sgn(d) == sgn(d - x);
}

double skim_reference(double c, double u, double x, double w, double s) {
  if (w <= 1) return u + w * (c - u);
  const double f = (s - 1) / (w - 1);
  u = mask(c, u, x, w) ? c * (1 - f) + u * f : u;
  u = mask(u, c, x, w) ? c * (1 - f) + u * f : u;
  return u + w * (c - u);
}

TEST(Guidance, SkimmedLinear) {
  GuidanceOptions options;
  options.skimmed = true;
  expect_video(options, 700,
               [](double c, double u, double x, std::int64_t) { return skim_reference(c, u, x, 5, 3); });
  options.trick = true;
  options.trick_frames = 3;
  options.trick_scale = 0.5f;
  expect_video(options, 700, [](double c, double u, double x, std::int64_t f) {
    return skim_reference(c, u, x, f < 3 ? 0.5 : 5, 3);
  });
  // It is off when the unconditional velocity is all zero.
  const Inputs in = inputs({9, 4});
  Tensor zero = Tensor::zeros(DType::f32, {9, 4});
  GuidanceOptions plain;
  EXPECT_EQ(max_abs_diff(guide_audio(in.cond, zero, in.latent, options),
                         guide_audio(in.cond, zero, in.latent, plain)),
            0);
  EXPECT_GT(relative_l2(guide_audio(in.cond, in.uncond, in.latent, options),
                        guide_audio(in.cond, in.uncond, in.latent, plain)),
            0.01);
}

double deviation(const Tensor& t, std::int64_t first, std::int64_t step, std::int64_t count) {
  double mean = 0, square = 0;
  for (std::int64_t k = 0; k < count; ++k)
    mean += t.data<float>()[first + k * step] / static_cast<double>(count);
  for (std::int64_t k = 0; k < count; ++k) square += std::pow(t.data<float>()[first + k * step] - mean, 2);
  return std::sqrt(square / static_cast<double>(count));
}

TEST(Guidance, RescaleRestoresTheDeviationOfEachChannel) {
  GuidanceOptions options;
  options.rescale = 1;
  const Inputs video = inputs({kChannels, kFrames, 3, 4});
  const Tensor v = guide_video(video.cond, video.uncond, video.latent, 700, options);
  for (std::int64_t c = 0; c < kChannels; ++c)
    EXPECT_NEAR(deviation(v, c * kFrames * kCells, 1, kFrames * kCells),
                deviation(video.cond, c * kFrames * kCells, 1, kFrames * kCells), 1e-6);
  const Inputs audio = inputs({11, 5});
  const Tensor a = guide_audio(audio.cond, audio.uncond, audio.latent, options);
  for (std::int64_t c = 0; c < 5; ++c)
    EXPECT_NEAR(deviation(a, c, 5, 11), deviation(audio.cond, c, 5, 11), 1e-6);

  options.rescale = 0.7f;
  const Tensor part = guide_audio(audio.cond, audio.uncond, audio.latent, options);
  const Tensor none = guide_audio(audio.cond, audio.uncond, audio.latent, GuidanceOptions{});
  for (std::int64_t i = 0; i < part.numel(); ++i)
    EXPECT_NEAR(part.data<float>()[i], 0.7f * a.data<float>()[i] + 0.3f * none.data<float>()[i], 1e-5);
}

TEST(Guidance, AudioHasItsOwnScaleAndNoFrameOptions) {
  GuidanceOptions options;
  options.trick = options.dynamic = true;
  const Inputs in = inputs({1, 11, 5});
  const Tensor v = guide_audio(in.cond, in.uncond, in.latent, options);
  for (std::int64_t i = 0; i < v.numel(); ++i) {
    const float c = in.cond.data<float>()[i], u = in.uncond.data<float>()[i];
    EXPECT_NEAR(v.data<float>()[i], u + 7 * (c - u), 1e-5);
  }
  const Tensor silent = Tensor::zeros(DType::f32, {0, 64});
  options.rescale = 0.5f;
  EXPECT_EQ(guide_audio(silent, silent, silent, options).numel(), 0);
}

TEST(Guidance, ReadsTheConfiguration) {
  const GuidanceOptions defaults = preview_guidance(ConfigNode(nlohmann::json::object(), "config.json"));
  EXPECT_EQ(defaults.video_scale, 5);
  EXPECT_EQ(defaults.audio_scale, 7);
  EXPECT_FALSE(defaults.trick || defaults.dynamic || defaults.skimmed);

  const auto json =
      parse_json(R"({"video_txt_guidance_scale": 4.5, "use_cfg_trick": true, "cfg_trick_start_frame": 3,
      "cfg_trick_value": 1.5, "use_dynamic_cfg": true, "dynamic_cfg_start_t": 300, "dynamic_cfg_cutoff_value": 2.5,
      "use_skimmed_cfg_linear": true, "skimmed_cfg_scale": 2, "cfg_rescale": 0.25, "use_ref_for_uncond": false,
      "use_negative_prompt": false, "magi2_refiner_video_txt_guidance_scale": 1.25})",
                 "config.json");
  const GuidanceOptions preview = preview_guidance(ConfigNode(json, "config.json"));
  EXPECT_EQ(preview.video_scale, 4.5f);
  EXPECT_TRUE(preview.trick && preview.dynamic && preview.skimmed);
  EXPECT_EQ(preview.trick_frames, 3);
  EXPECT_EQ(preview.trick_scale, 1.5f);
  EXPECT_EQ(preview.dynamic_start, 300);
  EXPECT_EQ(preview.dynamic_cutoff, 2.5f);
  EXPECT_EQ(preview.skimmed_scale, 2);
  EXPECT_EQ(preview.rescale, 0.25f);
  EXPECT_FALSE(preview.reference_in_uncond || preview.negative_prompt);
  const GuidanceOptions refiner = refiner_guidance(ConfigNode(json, "config.json"));
  EXPECT_EQ(refiner.video_scale, 1.25f);
  EXPECT_EQ(refiner.audio_scale, 5);
  EXPECT_TRUE(refiner.trick);
  EXPECT_FALSE(refiner.dynamic || refiner.skimmed || refiner.rescale > 0);
}

TEST(Guidance, RefusesUnequalShapes) {
  const Inputs in = inputs({2, 3, 2, 2});
  EXPECT_THROW(guide_video(in.cond, in.uncond, in.latent.reshape({2, 2, 3, 2}), 1, {}), Error);
  EXPECT_THROW(guide_video(in.cond.reshape({24}), in.uncond, in.latent, 1, {}), Error);
  EXPECT_THROW(guide_audio(in.cond, in.uncond, in.latent, {}), Error);
}

}  // namespace
}  // namespace magi
