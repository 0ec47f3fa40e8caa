// SPDX-License-Identifier: Apache-2.0
#include "sample/unipc.h"

#include <regex>

#include "sample/noise.h"
#include "support/golden.h"

namespace magi {
namespace {

void expect_schedule(const Schedule& schedule, const GoldenCase& golden) {
  const Tensor sigmas = golden.get("sigmas"), timesteps = golden.raw("timesteps");
  ASSERT_EQ(schedule.sigmas.size(), static_cast<std::size_t>(sigmas.numel()));
  ASSERT_EQ(schedule.steps(), timesteps.numel());
  EXPECT_LE(max_abs_diff(Tensor::of<float>(schedule.sigmas, {sigmas.numel()}), sigmas), 1e-7);
  for (std::int64_t i = 0; i < schedule.steps(); ++i)
    EXPECT_EQ(schedule.timesteps[static_cast<std::size_t>(i)], timesteps.data<std::int64_t>()[i])
        << "step " << i;
}

TEST(GoldenUniPC, Trajectories) {
  const std::regex name("(unipc_([0-9]+)_([0-9.]+))\\.safetensors");
  int cases = 0;
  for (const auto& file : std::filesystem::directory_iterator(golden_dir() / "cases")) {
    const std::string filename = file.path().filename().string();
    std::smatch match;
    if (!std::regex_match(filename, match, name)) continue;
    SCOPED_TRACE(filename);
    ++cases;
    const GoldenCase golden(match[1]);
    UniPC solver(make_schedule(std::stoll(match[2]), std::stod(match[3])));
    expect_schedule(solver.schedule(), golden);
    Tensor x = golden.get("x0");
    const Tensor velocities = golden.get("velocity"), samples = golden.get("samples");
    double worst = 0;
    for (std::int64_t i = 0; i < solver.schedule().steps(); ++i) {
      x = solver.step(velocities.rows(i, 1).reshape(x.shape()), x);
      worst = std::max(worst, relative_l2(x, samples.rows(i, 1).reshape(x.shape())));
    }
    std::printf("%s: worst step, relative L2 %.3g (tolerance 1e-05)\n", filename.c_str(), worst);
    EXPECT_LE(worst, 1e-5);
  }
  if (!cases) GTEST_SKIP() << "golden case missing: unipc_STEPS_SHIFT";
}

/// The latents of a sampling trace (latent_k is what step k left) follow from its velocities, video and
/// audio.
TEST(GoldenUniPC, PreviewSampleTrace) {
  GOLDEN_CASE(golden, "preview_sample_t2v_f32");
  for (const bool video : {true, false}) {
    const std::string latent = video ? "latent_" : "audio_", velocity = video ? "v_video_" : "v_audio_";
    UniPC solver(make_schedule(std::stoll(golden.meta("steps")), std::stod(golden.meta("shift"))));
    expect_schedule(solver.schedule(), golden);
    Tensor x = golden.get(video ? "latent" : "audio_latent");
    for (std::int64_t i = 0; i < solver.schedule().steps(); ++i) {
      const std::string k = std::to_string(i);
      if (!golden.has(velocity + k)) GTEST_SKIP() << golden.path() << " has no trace of step " << i;
      x = solver.step(golden.get(velocity + k), x);
      expect_close(latent + k, x, golden.get(latent + k), 1e-5);
    }
    expect_close("final", x, golden.get(video ? "out_latent" : "out_audio"), 1e-5);
  }
}

TEST(UniPC, ARestoredRunGoesOnTheSame) {
  NoiseGenerator noise(3);
  const Shape shape{2, 3, 4};
  std::vector<Tensor> velocities;
  for (int i = 0; i < 6; ++i) velocities.push_back(noise.randn(shape));
  Tensor x = noise.randn(shape);
  UniPC straight(make_schedule(6, 7));
  UniPCState saved;
  Tensor saved_x;
  for (std::size_t i = 0; i < 6; ++i) {
    if (i == 3) {
      saved = straight.state();
      saved_x = x;
    }
    x = straight.step(velocities[i], x);
  }
  UniPC restored(make_schedule(6, 7), saved);
  for (std::size_t i = 3; i < 6; ++i) saved_x = restored.step(velocities[i], saved_x);
  EXPECT_EQ(max_abs_diff(saved_x, x), 0);
}

TEST(UniPC, RefusesBadUse) {
  EXPECT_THROW(make_schedule(0, 7), Error);
  EXPECT_THROW(make_schedule(-1, 7), Error);
  EXPECT_THROW(make_schedule(1001, 7), Error);
  EXPECT_THROW(make_schedule(4, 0), Error);
  EXPECT_THROW(make_schedule(4, NAN), Error);
  EXPECT_THROW(make_schedule(4, 1e30), Error);
  const Tensor x = Tensor::zeros(DType::f32, {2});
  UniPC solver(make_schedule(1, 7));
  EXPECT_THROW(solver.step(Tensor::zeros(DType::f32, {3}), x), Error);
  solver.step(x, x);
  EXPECT_THROW(solver.step(x, x), Error);
  UniPCState without_history;
  without_history.step = 2;
  EXPECT_THROW(UniPC(make_schedule(4, 7), without_history), Error);
}

}  // namespace
}  // namespace magi
