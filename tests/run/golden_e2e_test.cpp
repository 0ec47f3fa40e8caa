// SPDX-License-Identifier: Apache-2.0
// The whole pipeline against the reference, from the prompt's text to frames and sound, f32. On the CPU, or
// where MAGI2_TEST_DEVICE says (support/backend.h).
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdio>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "run/pipeline.h"
#include "support/backend.h"
#include "support/compare.h"
#include "support/golden.h"
#include "support/golden_text.h"

namespace magi {
namespace {

Tensor first_of(const Tensor& t) {
  return t.reshape(Shape(t.shape().begin() + 1, t.shape().end()));
}

/// "48x32" → {48, 32}.
Size size_of_text(const std::string& text) {
  Size size;
  EXPECT_EQ(std::sscanf(text.c_str(), "%ldx%ld", &size.width, &size.height), 2) << text;
  return size;
}

/// A prompt of the text encoder's case, without the figure reference that the pipeline itself appends.
std::string prompt_of(const GoldenCase& text, const std::string& key) {
  std::string prompt = unescaped(text.meta(key));
  if (const std::size_t at = prompt.find("reference_layer:"); at != std::string::npos) prompt.resize(at);
  return prompt;
}

/// The case's request: its sizes and steps, the prompts that the text encoder's case names.
Request case_request(const GoldenCase& c, const GoldenCase& text, const CheckpointRoot& root,
                     bool with_image) {
  const Size preview = size_of_text(c.meta("preview"));
  nlohmann::json j{{"prompt", prompt_of(text, with_image ? "prompt_i2v" : "prompt_t2v")},
                   {"negative_prompt", prompt_of(text, "prompt_null")},
                   {"width", preview.width},
                   {"height", preview.height},
                   {"steps", std::stoll(c.meta("steps"))},
                   {"refiner_steps", std::stoll(c.meta("refiner_steps"))},
                   {"seconds", std::stod(c.meta("seconds"))},
                   {"dtype", "f32"},
                   {"refine", c.meta("refiner")}};
  if (with_image) j["image"] = golden_file("e2e_image.png").string();
  return Request::from_json(j, root.defaults(), "golden");
}

/// Every `stride`-th frame of a decoded latent; `total` counts all of them.
Tensor decode(Pipeline& pipeline, const Request& request, const Tensor& latent, std::int64_t stride,
              std::int64_t& total) {
  std::vector<std::uint8_t> kept;
  Shape shape;
  total = 0;
  pipeline.decode_video(request, latent, [&](const Tensor& frames) {
    shape = frames.shape();
    for (std::int64_t i = 0; i < frames.dim(0); ++i, ++total) {
      if (total % stride != 0) continue;
      const auto frame = frames.rows(i, 1).values<std::uint8_t>();
      kept.insert(kept.end(), frame.begin(), frame.end());
    }
  });
  shape[0] = (total + stride - 1) / stride;
  return Tensor::of<std::uint8_t>(kept, shape);
}

class EndToEnd : public testing::TestWithParam<std::string> {};

TEST_P(EndToEnd, PromptToFramesAndSound) {
  GOLDEN_CASE(c, "e2e_" + GetParam());
  GOLDEN_CASE(text_case, "text_encoder");
  const CheckpointRoot root(golden_model(), std::nullopt);
  const Request request = case_request(c, text_case, root, GetParam() == "i2v");
  Progress progress;
  Pipeline pipeline(root, progress, {test_device()});

  const std::vector<Tensor> images = pipeline.encode_images(request);
  if (c.has("image_latent"))
    expect_close("image_latent", images.at(0), first_of(c.get("image_latent")), 1e-3);
  const TextFeatures text = pipeline.encode_text(request);
  const Latents latents = pipeline.denoise(request, text, images,
                                           {first_of(c.get("noise_video")), first_of(c.get("noise_audio"))});
  expect_close("preview_latent", latents.video, first_of(c.get("preview_latent")), 1e-3);
  expect_close("audio_latent", latents.audio, first_of(c.get("audio_latent")), 1e-3);

  std::int64_t total = 0;
  const Tensor want_frames = c.raw("preview_frames");
  expect_frames("preview_frames", decode(pipeline, request, latents.video, 1, total), want_frames);
  EXPECT_EQ(total, want_frames.dim(0));
  expect_close("audio", pipeline.decode_audio(latents.audio), c.get("audio"), 1e-3);

  if (!c.has("refined_latent")) return;
  const Tensor refined = pipeline.refine(request, text, latents.video, first_of(c.get("noise_refiner")));
  expect_close("refined_latent", refined, first_of(c.get("refined_latent")), 1e-3);
  // The case holds every n-th of the refined frames.
  const Tensor want_refined = c.raw("refined_frames");
  const auto count = static_cast<std::int64_t>(c.get("refined_frame_count").data<float>()[0]);
  const std::int64_t stride = (count + want_refined.dim(0) - 1) / want_refined.dim(0);
  expect_frames("refined_frames", decode(pipeline, request, refined, stride, total), want_refined);
  EXPECT_EQ(total, count);
}

INSTANTIATE_TEST_SUITE_P(Golden, EndToEnd, testing::Values("short", "t2v", "i2v"),
                         [](const auto& info) { return info.param; });

}  // namespace
}  // namespace magi
