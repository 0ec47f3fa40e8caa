// SPDX-License-Identifier: Apache-2.0
// A tiny root's clip, stage by stage, on the GPU and on the CPU: each stage is given what the CPU's stage
// before made.
#include <gtest/gtest.h>

#include <cstdlib>
#include <nlohmann/json.hpp>

#include "ops/devices.h"
#include "run/pipeline.h"
#include "run/tiny_root.h"
#include "sample/noise.h"
#include "support/compare.h"
#include "support/golden.h"
#include "support/temp_dir.h"

namespace magi {
namespace {

constexpr double kTolerance = 1e-3;  ///< f32 trajectories, as for the golden cases

/// All results of a clip.
struct ClipParts {
  std::vector<Tensor> images;
  TextFeatures text;
  Latents latents;
  Tensor refined, frames, wan_frames, sound;
};

class ClipOnCuda : public testing::Test {
 protected:
  void SetUp() override {
    if (cuda_devices().empty()) GTEST_SKIP() << "no CUDA device";
    write_tiny_root(directory_ / "root", 1);
    root_.emplace(directory_ / "root", std::nullopt);
  }

  Request request(const std::string& dtype) const {
    return Request::from_json({{"prompt", "A fox walks to <Figure 1>; snow crunches."},
                               {"image", (directory_ / "root" / "example.png").string()},
                               {"width", 96},
                               {"height", 64},
                               {"seconds", 1},
                               {"steps", 4},
                               {"refine", "144x96"},
                               {"refiner_steps", 2},
                               {"dtype", dtype}},
                              root_->defaults(), "test");
  }

  /// The stages' results on `device`; `given` holds another run's, each stage's input.
  ClipParts make(Device device, Request request, const ClipParts* given) const {
    Progress progress;
    Pipeline pipeline(*root_, progress, {device});
    NoiseGenerator noise(7);
    SampleState start;
    start.latents.video = noise.randn({48, request.latent_frames(), request.height / 16, request.width / 16});
    start.latents.audio = noise.randn({request.audio_latents(), 64});
    const Tensor more = noise.randn({48, 2 * request.latent_frames() - 1, 6, 9});
    ClipParts parts;
    const ClipParts& from = given ? *given : parts;
    parts.images = pipeline.encode_images(request);
    parts.text = pipeline.encode_text(request);
    parts.latents = pipeline.denoise(request, from.text, from.images, start);
    parts.refined = pipeline.refine(request, from.text, from.latents.video, more);
    parts.sound = pipeline.decode_audio(from.latents.audio);
    parts.frames = decode(pipeline, request, from.refined);
    request.wan_decoder = true;
    parts.wan_frames = decode(pipeline, request, from.latents.video);
    return parts;
  }

  static Tensor decode(Pipeline& pipeline, const Request& request, const Tensor& latent) {
    std::vector<std::uint8_t> all;
    Shape shape;
    pipeline.decode_video(request, latent, [&](const Tensor& frames) {
      shape = frames.shape();
      const auto values = frames.values<std::uint8_t>();
      all.insert(all.end(), values.begin(), values.end());
    });
    shape[0] = static_cast<std::int64_t>(all.size()) / (shape[1] * shape[2] * shape[3]);
    return Tensor::of<std::uint8_t>(all, shape);
  }

  TempDir directory_;
  std::optional<CheckpointRoot> root_;
};

constexpr Device kCuda{Device::Kind::cuda, 0};

TEST_F(ClipOnCuda, F32AsOnTheCpu) {
  const ClipParts cpu = make({}, request("f32"), nullptr), gpu = make(kCuda, request("f32"), &cpu);
  expect_close("image latent", gpu.images.at(0), cpu.images.at(0), kTolerance);
  expect_close("text features", gpu.text.prompt, cpu.text.prompt, kTolerance);
  expect_close("video latent", gpu.latents.video, cpu.latents.video, kTolerance);
  expect_close("audio latent", gpu.latents.audio, cpu.latents.audio, kTolerance);
  expect_close("refined latent", gpu.refined, cpu.refined, kTolerance);
  expect_close("sound", gpu.sound, cpu.sound, kTolerance);
  expect_frames("frames of the refined latent, turbo decoder", gpu.frames, cpu.frames);
  expect_frames("frames, Wan decoder", gpu.wan_frames, cpu.wan_frames);
}

// The distance of bf16 from f32 is arithmetic's, not the backend's: the GPU's is the CPU's, or less.
TEST_F(ClipOnCuda, Bf16AsFarFromF32AsOnTheCpu) {
  const ClipParts exact = make({}, request("f32"), nullptr);
  const ClipParts cpu = make({}, request("bf16"), &exact), gpu = make(kCuda, request("bf16"), &exact);
  constexpr double kLimit = 2.5;  // of whole trajectories, as for the golden cases
  expect_bf16_distance("text features", gpu.text.prompt, cpu.text.prompt, exact.text.prompt, kLimit);
  expect_bf16_distance("video latent", gpu.latents.video, cpu.latents.video, exact.latents.video, kLimit);
  expect_bf16_distance("audio latent", gpu.latents.audio, cpu.latents.audio, exact.latents.audio, kLimit);
  expect_bf16_distance("refined latent", gpu.refined, cpu.refined, exact.refined, kLimit);
  expect_frames("frames of the refined latent, turbo decoder", gpu.frames, cpu.frames);
}

}  // namespace
}  // namespace magi
