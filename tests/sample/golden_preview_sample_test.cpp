// SPDX-License-Identifier: Apache-2.0
// The preview's denoising loop against the reference: each guidance option, whole f32 trajectories, bf16 step
// by step.
#include <gtest/gtest.h>

#include <filesystem>

#include "io/checkpoint.h"
#include "io/config.h"
#include "sample/preview_sampler.h"
#include "support/backend.h"
#include "support/compare.h"
#include "support/flips.h"
#include "support/golden.h"

namespace magi {
namespace {

Tensor first_of(const Tensor& t) {
  return t.reshape(Shape(t.shape().begin() + 1, t.shape().end()));
}

/// The golden config with the case's own options laid over it.
GuidanceOptions case_guidance(const GoldenCase& c) {
  nlohmann::json config = load_config(golden_model("config.json"), golden_model());
  nlohmann::json& e = config["evaluation_config"];
  for (auto it = e.begin(); it != e.end(); ++it) {
    if (!c.has_meta(it.key())) continue;
    const std::string value = c.meta(it.key());
    if (it->is_boolean())
      *it = value == "True";
    else if (it->is_number())
      *it = std::stod(value);
  }
  for (const char* key : {"cfg_trick_start_frame"})
    if (c.has_meta(key)) e[key] = std::stoll(c.meta(key));
  return preview_guidance(ConfigNode(e, "golden"));
}

class Bench {
 public:
  explicit Bench(DType dtype) : dtype_(dtype), arena_(test_arena()), ops_(make_ops(arena_)) {
    const ConfigNode config(load_config(golden_model("config.json"), golden_model()), "config.json");
    model_ =
        load_preview(*ops_, *open_checkpoint(golden_model("preview")), PreviewConfig::from(config), dtype);
  }
  Ops& ops() { return *ops_; }
  PreviewRun run(const GoldenCase& c, bool with_images) {
    const Tensor latent = c.get("latent");
    std::vector<ReferenceImage> images;
    if (with_images) {
      const Tensor all = first_of(c.get("ref_image")), tokens = first_of(c.get("ref_tok"));
      for (std::int64_t k = 0; k < all.dim(0); ++k)
        images.push_back({first_of(all.rows(k, 1)).clone(), first_of(tokens.rows(k, 1)).clone()});
    }
    auto branches =
        guidance_branches(first_of(c.get("text")), first_of(c.get("null_text")), images, case_guidance(c));
    return {*ops_, *model_,
            pack({latent.dim(2), latent.dim(3), latent.dim(4)}, c.get("audio_latent").dim(1), branches),
            dtype_};
  }

 private:
  DType dtype_;
  Arena arena_;
  std::unique_ptr<Ops> ops_;
  std::unique_ptr<Preview> model_;
};

bool uses_images(const std::string& name) {
  return name == "i2v" || name == "norefuncond";
}

Latents guided(PreviewRun& run, const Latents& at, double timestep, const GuidanceOptions& guidance,
               const Probe& probe = {}) {
  const auto v = run.velocity(at.video, at.audio, timestep, probe);
  return {guide_video(v[0].video, v[1].video, at.video, timestep, guidance),
          guide_audio(v[0].audio, v[1].audio, at.audio, guidance)};
}

std::string step_name(const char* what, std::int64_t step) {
  return what + std::to_string(step);
}

class PreviewSample : public testing::TestWithParam<std::string> {};

TEST_P(PreviewSample, TrajectoryF32) {
  GOLDEN_CASE(c, "preview_sample_" + GetParam() + "_f32");
  const Schedule schedule = make_schedule(std::stoll(c.meta("steps")), std::stod(c.meta("shift")));
  Bench bench(DType::f32);
  PreviewRun run = bench.run(c, uses_images(GetParam()));
  const Latents noise{first_of(c.get("latent")), first_of(c.get("audio_latent"))};
  const Latents first = guided(run, noise, static_cast<double>(schedule.timesteps[0]), case_guidance(c));
  expect_close("v_video_0", first.video, first_of(c.get("v_video_0")), 1e-3);
  expect_close("v_audio_0", first.audio, first_of(c.get("v_audio_0")), 1e-3);

  Progress progress;
  const Latents end = sample_preview(run, {noise}, schedule, case_guidance(c), progress,
                                     [&](const StepRecord& step, const SampleState& state) {
                                       const std::string name = step_name("latent_", step.step);
                                       if (c.has(name))
                                         expect_close(name, state.latents.video, first_of(c.get(name)), 1e-3);
                                     });
  expect_close("out_latent", end.video, first_of(c.get("out_latent")), 1e-3);
  expect_close("out_audio", end.audio, first_of(c.get("out_audio")), 1e-3);
}

/// Of the guided velocity's video (`kind` 0) or audio (1): whether a row of either branch flipped.
std::vector<bool> flips_of_either(const PackedSequence& s, const std::vector<bool>& flipped,
                                  std::size_t kind) {
  std::vector<bool> either;
  for (const std::size_t first : s.first_segments) {
    const Segment& segment = s.segments[first + kind];
    either.resize(static_cast<std::size_t>(segment.rows));
    for (std::int64_t r = 0; r < segment.rows; ++r)
      if (flipped[static_cast<std::size_t>(segment.first + r)]) either[static_cast<std::size_t>(r)] = true;
  }
  return either;
}

TEST_P(PreviewSample, StepsBf16) {
  GOLDEN_CASE(c, "preview_sample_" + GetParam() + "_bf16");
  Bench exact(DType::f32), rounded(DType::bf16);
  PreviewRun exact_run = exact.run(c, uses_images(GetParam())), run = rounded.run(c, uses_images(GetParam()));
  const Tensor timesteps = c.get("timesteps");
  for (std::int64_t k = 0; c.has(step_name("v_video_", k)); ++k) {
    // latent_k is what step k left behind.
    const Latents at = k == 0 ? Latents{first_of(c.get("latent")), first_of(c.get("audio_latent"))}
                              : Latents{first_of(c.get(step_name("latent_", k - 1))),
                                        first_of(c.get(step_name("audio_", k - 1)))};
    const double timestep = timesteps.data<float>()[k];
    ExpertChoices exact_choices, choices;
    const auto listen = [](Bench& bench, ExpertChoices& to) {
      return [&](std::string_view name, const Tensor& value) { to.hear(bench.ops(), name, value); };
    };
    const Latents want = guided(exact_run, at, timestep, case_guidance(c), listen(exact, exact_choices));
    const Latents got = guided(run, at, timestep, case_guidance(c), listen(rounded, choices));
    const std::vector<bool> flipped = choices.differ_from(exact_choices, exact_choices.layers());
    const auto compare = [&](const std::string& name, const Tensor& ours, const Tensor& reference,
                             const Tensor& f32, std::size_t kind) {
      expect_bf16_distance(name, ours, reference, f32, 2.5);
      expect_bf16_rows(name, ours, reference, f32, flips_of_either(run.sequence(), flipped, kind));
    };
    compare(step_name("v_video_", k), cells_from_latent(got.video),
            cells_from_latent(first_of(c.get(step_name("v_video_", k)))), cells_from_latent(want.video), 0);
    compare(step_name("v_audio_", k), got.audio, first_of(c.get(step_name("v_audio_", k))), want.audio, 1);
  }
}

INSTANTIATE_TEST_SUITE_P(Golden, PreviewSample,
                         testing::Values("t2v", "i2v", "norefuncond", "trick", "dynamic", "skimmed",
                                         "rescale"),
                         [](const auto& info) { return info.param; });

}  // namespace
}  // namespace magi
