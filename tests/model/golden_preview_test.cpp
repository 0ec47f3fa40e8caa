// SPDX-License-Identifier: Apache-2.0
// The preview DiT against the reference: packing, embedding, every layer, velocities; f32 and bf16.
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <vector>

#include "io/checkpoint.h"
#include "io/config.h"
#include "model/preview.h"
#include "support/backend.h"
#include "support/compare.h"
#include "support/flips.h"
#include "support/golden.h"

namespace magi {
namespace {

Tensor first_of(const Tensor& t) {  // drops a leading axis of 1
  return t.reshape(Shape(t.shape().begin() + 1, t.shape().end()));
}

PackedSequence golden_sequence(const GoldenCase& c) {
  const Tensor latent = c.get("latent");
  const bool with_image = c.meta("withref", "False") == "True";
  std::vector<Conditioning> branches;
  for (const char* text : {"text", "null_text"}) {
    Conditioning branch{first_of(c.get(text)), {}};
    if (with_image) {
      const Tensor images = first_of(c.get("ref_image")), tokens = first_of(c.get("ref_tok"));
      for (std::int64_t k = 0; k < images.dim(0); ++k)
        branch.images.push_back({first_of(images.rows(k, 1)).clone(), first_of(tokens.rows(k, 1)).clone()});
    }
    branches.push_back(branch);
  }
  return pack({latent.dim(2), latent.dim(3), latent.dim(4)}, c.get("audio_latent").dim(1), branches);
}

/// The token matrix that the reference packs: rows padded with zeros to the widest kind.
Tensor padded_tokens(const PackedSequence& s, const Tensor& latent, const Tensor& audio, std::int64_t width) {
  Tensor tokens = Tensor::zeros(DType::f32, {s.rows(), width});
  std::int64_t row = 0;
  const auto append = [&](const Tensor& rows) {
    for (std::int64_t r = 0; r < rows.dim(0); ++r, ++row)
      std::copy_n(rows.data<float>() + r * rows.dim(1), rows.dim(1), tokens.data<float>() + row * width);
  };
  for (const Conditioning& branch : s.branches) {
    append(cells_from_latent(latent));
    append(first_of(audio));
    append(branch.text);
    for (const ReferenceImage& image : branch.images) {
      append(image.figure_token.reshape({1, image.figure_token.numel()}));
      append(cells_from_latent(image.latent));
    }
  }
  return tokens;
}

PreviewConfig golden_config() {
  return PreviewConfig::from(
      ConfigNode(load_config(golden_model("config.json"), golden_model()), "config.json"));
}

struct Forward {
  std::vector<Velocity> velocities;
  std::map<std::string, Tensor> probes;
  ExpertChoices choices;
};

Forward run_forward(const GoldenCase& c, DType dtype, ExpertFormat experts = ExpertFormat::stored) {
  Arena arena = test_arena();
  const auto ops = make_ops(arena);
  auto config = golden_config();
  config.expert_format = experts;
  const auto model = load_preview(*ops, *open_checkpoint(golden_model("preview")), config, dtype);
  PreviewRun run(*ops, *model, golden_sequence(c), dtype);
  Forward result;
  result.velocities = run.velocity(c.get("latent"), c.get("audio_latent"), std::stod(c.meta("timestep")),
                                   [&](std::string_view name, const Tensor& value) {
                                     result.choices.hear(*ops, name, value);
                                     const Tensor copy = as_f32(ops->download(value));
                                     result.probes.try_emplace(std::string(name), copy);
                                   });
  return result;
}

Tensor stack_video(const std::vector<Velocity>& v) {
  Shape shape = v[0].video.shape();
  shape.insert(shape.begin(), static_cast<std::int64_t>(v.size()));
  Tensor all = Tensor::empty(DType::f32, shape);
  for (std::size_t b = 0; b < v.size(); ++b)
    std::copy_n(v[b].video.data<float>(), v[b].video.numel(), all.data<float>() + b * v[b].video.numel());
  return all;
}

Tensor stack_audio(const std::vector<Velocity>& v) {
  Tensor all =
      Tensor::empty(DType::f32, {static_cast<std::int64_t>(v.size()), v[0].audio.dim(0), v[0].audio.dim(1)});
  for (std::size_t b = 0; b < v.size(); ++b)
    std::copy_n(v[b].audio.data<float>(), v[b].audio.numel(), all.data<float>() + b * v[b].audio.numel());
  return all;
}

class PreviewForward : public testing::TestWithParam<std::string> {};

TEST_P(PreviewForward, Packing) {
  GOLDEN_CASE(c, "preview_forward_" + GetParam() + "_f32");
  const PackedSequence s = golden_sequence(c);
  EXPECT_EQ(max_abs_diff(s.coordinates, c.get("coords")), 0);
  const Tensor tokens = c.get("tokens");
  EXPECT_EQ(max_abs_diff(padded_tokens(s, c.get("latent"), c.get("audio_latent"), tokens.dim(1)), tokens), 0);
  const Tensor modality = c.get("modality"), ends = c.get("cu_seqlens");
  for (const Segment& segment : s.segments)
    for (std::int64_t r = segment.first; r < segment.first + segment.rows; ++r)
      ASSERT_EQ(modality.data<float>()[r], static_cast<float>(segment.modality)) << "row " << r;
  const auto samples = sample_ranges(s.segments);
  ASSERT_EQ(static_cast<std::int64_t>(samples.size()) + 1, ends.numel());
  for (std::size_t i = 0; i < samples.size(); ++i)
    EXPECT_EQ(static_cast<float>(samples[i].end), ends.data<float>()[i + 1]);
  const Tensor rope = c.get("rope");
  expect_close("rope", rotary_table(s.coordinates, rotary_bands(rope.dim(1) / 6)), rope, 1e-5);
}

TEST_P(PreviewForward, ForwardF32) {
  GOLDEN_CASE(c, "preview_forward_" + GetParam() + "_f32");
  const Forward f = run_forward(c, DType::f32);
  for (const auto& [name, value] : f.probes)
    if (c.has(name)) expect_close(name, value, c.get(name), 1e-4);
  expect_close("video velocity", stack_video(f.velocities), c.get("video_velocity"), 1e-4);
  expect_close("audio velocity", stack_audio(f.velocities), c.get("audio_velocity"), 1e-4);
}

/// A row's choices in all heads: experts by head, each with its weight.
using Choices = std::vector<std::pair<std::int64_t, float>>;

/// Choices of the rows in `rows`, sorted: the reference sorts tokens by modality with an unstable sort, so
/// only the set of rows within a modality can be compared. `at(row, head, j)` gives expert and weight.
template <typename At>
std::vector<Choices> sorted_choices(const std::vector<std::int64_t>& rows, std::int64_t heads, std::int64_t k,
                                    At at) {
  std::vector<Choices> all;
  for (std::int64_t row : rows) {
    Choices choices;
    for (std::int64_t h = 0; h < heads; ++h) {
      Choices of_head;
      for (std::int64_t j = 0; j < k; ++j) of_head.push_back(at(row, h, j));
      std::sort(of_head.begin(), of_head.end());
      choices.insert(choices.end(), of_head.begin(), of_head.end());
    }
    all.push_back(std::move(choices));
  }
  const auto experts_then_weights = [](const Choices& a, const Choices& b) {
    for (std::size_t i = 0; i < a.size(); ++i)
      if (a[i].first != b[i].first) return a[i].first < b[i].first;
    return a < b;
  };
  std::sort(all.begin(), all.end(), experts_then_weights);
  return all;
}

/// The first MoE layer's choices; the reference's are [heads, tokens sorted by modality, k].
TEST_P(PreviewForward, Routing) {
  GOLDEN_CASE(c, "preview_forward_" + GetParam() + "_f32");
  const Forward f = run_forward(c, DType::f32);
  const PackedSequence s = golden_sequence(c);
  const Tensor want_index = c.get("moe1_topk_indices"), want_weight = c.get("moe1_topk_probs");
  const Tensor index = f.probes.at("routing_index"), weight = f.probes.at("routing_weight");
  const std::int64_t heads = want_index.dim(0), tokens = want_index.dim(1), k = want_index.dim(2);
  const std::int64_t experts = golden_config().experts;
  std::int64_t position = 0;
  double worst = 0;
  for (int m = 0; m < kModalities; ++m) {
    std::vector<std::int64_t> rows, positions;
    for (const Segment& segment : s.segments)
      for (std::int64_t r = 0; static_cast<int>(segment.modality) == m && r < segment.rows; ++r) {
        rows.push_back(segment.first + r);
        positions.push_back(position++);
      }
    const auto got = sorted_choices(rows, heads, k, [&](std::int64_t row, std::int64_t h, std::int64_t j) {
      const std::int64_t i = (row * heads + h) * k + j;
      return std::pair(static_cast<std::int64_t>(index.data<float>()[i]), weight.data<float>()[i]);
    });
    const auto want =
        sorted_choices(positions, heads, k, [&](std::int64_t p, std::int64_t h, std::int64_t j) {
          const std::int64_t i = (h * tokens + p) * k + j;
          return std::pair(static_cast<std::int64_t>(want_index.data<float>()[i]) % experts,
                           want_weight.data<float>()[i]);
        });
    for (std::size_t r = 0; r < want.size(); ++r)
      for (std::size_t i = 0; i < want[r].size(); ++i) {
        ASSERT_EQ(got[r][i].first, want[r][i].first) << "modality " << m << ", sorted row " << r;
        worst = std::max(worst, std::abs(double{got[r][i].second} - double{want[r][i].second}));
      }
  }
  std::printf("routing weights: largest difference %.3g (limit 1e-3)\n", worst);
  EXPECT_LT(worst, 1e-3);
}

/// [branches,C,T,H,W] or [branches,A,C'] → rows of all branches.
Tensor rows_of_branches(const Tensor& velocity) {
  if (velocity.rank() == 3) return velocity.reshape({velocity.dim(0) * velocity.dim(1), velocity.dim(2)});
  const std::int64_t branches = velocity.dim(0), cells = velocity.numel() / branches / velocity.dim(1);
  Tensor rows = Tensor::empty(DType::f32, {branches * cells, velocity.dim(1)});
  for (std::int64_t b = 0; b < branches; ++b) {
    Tensor of_branch = rows.rows(b * cells, cells);
    cells_from_latent(first_of(velocity.rows(b, 1)), {}, of_branch);
  }
  return rows;
}

/// Of all branches' video (`kind` 0) or audio (1).
std::vector<bool> flips_of_branches(const PackedSequence& s, const std::vector<bool>& flipped,
                                    std::size_t kind) {
  std::vector<bool> all;
  for (const std::size_t first : s.first_segments) {
    const Segment& segment = s.segments[first + kind];
    all.insert(all.end(), flipped.begin() + segment.first, flipped.begin() + segment.first + segment.rows);
  }
  return all;
}

/// bf16 is judged by its distance to f32, in units of the reference's own: all of it roughly, since a few
/// flipped experts decide it, the rest closely.
TEST_P(PreviewForward, ForwardBf16) {
  GOLDEN_CASE(c, "preview_forward_" + GetParam() + "_bf16");
  GOLDEN_CASE(exact, "preview_forward_" + GetParam() + "_f32");
  const Forward f = run_forward(c, DType::bf16), f32 = run_forward(exact, DType::f32);
  const PreviewConfig config = golden_config();
  for (const auto& [name, value] : f.probes) {
    if (!name.starts_with("layer_") || !c.has(name)) continue;
    const std::int64_t layer = std::stoll(name.substr(6));
    const auto routed = std::count_if(config.moe_layers.begin(), config.moe_layers.end(),
                                      [&](std::int64_t i) { return i <= layer; });
    expect_bf16_distance(name, value, c.get(name), exact.get(name), routed == 0 ? 1.25 : 2.5);
    expect_bf16_rows(name, value, c.get(name), exact.get(name), f.choices.differ_from(f32.choices, routed));
  }
  const PackedSequence s = golden_sequence(c);
  const std::vector<bool> flipped = f.choices.differ_from(f32.choices, f32.choices.layers());
  const auto compare = [&](const std::string& name, const Tensor& got, std::size_t kind) {
    expect_bf16_distance(name, got, c.get(name), exact.get(name), 2.5);
    expect_bf16_rows(name, rows_of_branches(got), rows_of_branches(c.get(name)),
                     rows_of_branches(exact.get(name)), flips_of_branches(s, flipped, kind));
  };
  compare("video_velocity", stack_video(f.velocities), 0);
  compare("audio_velocity", stack_audio(f.velocities), 1);
}

/// Four-bit experts compute what their numbers do, to the bit, and are not the unquantised ones.
TEST_P(PreviewForward, PackedExpertsEqualFakeQuantisedOnes) {
  for (const DType dtype : {DType::f32, DType::bf16}) {
    GOLDEN_CASE(c, "preview_forward_" + GetParam() + "_" + std::string(name_of(dtype)));
    const Forward packed = run_forward(c, dtype, ExpertFormat::nvfp4);
    const Forward fake = run_forward(c, dtype, ExpertFormat::nvfp4_fake);
    const Forward plain = run_forward(c, dtype);
    EXPECT_EQ(max_abs_diff(stack_video(packed.velocities), stack_video(fake.velocities)), 0)
        << name_of(dtype);
    EXPECT_EQ(max_abs_diff(stack_audio(packed.velocities), stack_audio(fake.velocities)), 0)
        << name_of(dtype);
    for (const auto& [name, value] : packed.probes)
      EXPECT_EQ(max_abs_diff(value, fake.probes.at(name)), 0) << name << " " << name_of(dtype);
    const double error = relative_l2(stack_video(packed.velocities), stack_video(plain.velocities));
    std::printf("%s: NVFP4 experts change the video velocity by %.3g\n", std::string(name_of(dtype)).c_str(),
                error);
    EXPECT_GT(error, 1e-4);
    EXPECT_LT(error, 0.3);
  }
}

INSTANTIATE_TEST_SUITE_P(Golden, PreviewForward, testing::Values("t2v", "i2v"),
                         [](const auto& info) { return info.param; });

}  // namespace
}  // namespace magi
