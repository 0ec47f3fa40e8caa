// SPDX-License-Identifier: Apache-2.0
// The refiner's denoising loop against the reference, f32 trajectory and bf16 step by step.
#include <gtest/gtest.h>

#include "io/checkpoint.h"
#include "io/config.h"
#include "sample/refiner_sampler.h"
#include "support/backend.h"
#include "support/compare.h"
#include "support/golden.h"

namespace magi {
namespace {

Tensor first_of(const Tensor& t) {
  return t.reshape(Shape(t.shape().begin() + 1, t.shape().end()));
}

struct Refining {
  Refining(const GoldenCase& c, DType dtype) : arena(test_arena()), ops(make_ops(arena)) {
    const ConfigNode config(load_config(golden_model("config.json"), golden_model()), "config.json");
    model = load_refiner(*ops, *open_checkpoint(golden_model("refiner")), RefinerConfig::from(config), dtype);
    const Tensor latent = c.get("renoised");
    const LatentGrid grid{latent.dim(2), latent.dim(3), latent.dim(4)};
    text = std::make_unique<RefinerRun>(*ops, *model, grid, 0, first_of(c.get("text")), dtype);
    null_text = std::make_unique<RefinerRun>(*ops, *model, grid, 0, first_of(c.get("null_text")), dtype);
  }
  Arena arena;
  std::unique_ptr<Ops> ops;
  std::unique_ptr<Refiner> model;
  std::unique_ptr<RefinerRun> text, null_text;
};

TEST(GoldenRefinerSample, TrajectoryF32) {
  GOLDEN_CASE(c, "refiner_sample_f32");
  Refining r(c, DType::f32);
  Progress progress;
  const Schedule schedule = make_schedule(std::stoll(c.meta("steps")), std::stod(c.meta("shift")));
  GuidanceOptions guidance;
  guidance.video_scale = std::stof(c.meta("guidance"));
  const Tensor end = sample_refiner(*r.text, *r.null_text, first_of(c.get("renoised")), schedule, guidance,
                                    progress, [&](const StepRecord& step, const Tensor& latent) {
                                      const std::string name = "latent_" + std::to_string(step.step);
                                      if (c.has(name))
                                        expect_close(name, latent, first_of(c.get(name)), 1e-3);
                                    });
  expect_close("out_latent", end, first_of(c.get("out_latent")), 1e-3);
}

/// bf16 against f32 for one velocity at the reference's own latents.
TEST(GoldenRefinerSample, VelocitiesBf16) {
  GOLDEN_CASE(c, "refiner_sample_bf16");
  Refining exact(c, DType::f32), rounded(c, DType::bf16);
  for (std::int64_t k = 0; c.has("latent_" + std::to_string(k)); ++k) {
    const Tensor latent = first_of(c.get("latent_" + std::to_string(k)));
    const Tensor want = exact.text->velocity(latent).video, got = rounded.text->velocity(latent).video;
    expect_close("velocity at latent_" + std::to_string(k), got, want, 0.02);
  }
}

}  // namespace
}  // namespace magi
