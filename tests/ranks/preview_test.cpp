// SPDX-License-Identifier: Apache-2.0
// The preview over ranks gives the bits of one rank: every possible choice of degrees, from text and from an
// image.
#include <gtest/gtest.h>

#include "io/checkpoint.h"
#include "io/config.h"
#include "ops/devices.h"
#include "ranks/ranks_testing.h"
#include "sample/preview_sampler.h"
#include "support/compare.h"
#include "support/golden.h"

namespace magi {
namespace {

Tensor first_of(const Tensor& t) {
  return t.reshape(Shape(t.shape().begin() + 1, t.shape().end()));
}

bool same_bytes(const Tensor& a, const Tensor& b) {
  return a.shape() == b.shape() && std::memcmp(a.raw(), b.raw(), a.bytes()) == 0;
}

/// A golden case's problem, on this rank.
class Problem {
 public:
  Problem(Ops& ops, const GoldenCase& c, DType dtype, const Parallel& parallel) {
    const ConfigNode config(load_config(golden_model("config.json"), golden_model()), "config.json");
    guidance_ = preview_guidance(config.node("evaluation_config"));
    model_ = load_preview(ops, *open_checkpoint(golden_model("preview")), PreviewConfig::from(config), dtype,
                          {}, parallel);
    const Tensor latent = c.get("latent");
    std::vector<ReferenceImage> images;
    if (c.has("ref_image")) {
      const Tensor all = first_of(c.get("ref_image")), tokens = first_of(c.get("ref_tok"));
      for (std::int64_t k = 0; k < all.dim(0); ++k)
        images.push_back({first_of(all.rows(k, 1)).clone(), first_of(tokens.rows(k, 1)).clone()});
    }
    run_ = std::make_unique<PreviewRun>(
        ops, *model_,
        pack({latent.dim(2), latent.dim(3), latent.dim(4)}, c.get("audio_latent").dim(1),
             guidance_branches(first_of(c.get("text")), first_of(c.get("null_text")), images, guidance_)),
        dtype);
    start_ = {first_of(latent), first_of(c.get("audio_latent"))};
  }

  Latents sample(std::int64_t steps) {
    Progress progress;
    return sample_preview(*run_, {start_}, make_schedule(steps, 7), guidance_, progress);
  }

 private:
  GuidanceOptions guidance_;
  std::unique_ptr<Preview> model_;
  std::unique_ptr<PreviewRun> run_;
  Latents start_;
};

class GoldenPreview : public testing::TestWithParam<std::tuple<std::string, DType>> {};

TEST_P(GoldenPreview, SameBitsWithAnyDegrees) {
  const auto [name, dtype] = GetParam();
  GOLDEN_CASE(c, "preview_sample_" + name + (dtype == DType::f32 ? "_f32" : "_bf16"));
  Arena arena = rank_arena();
  const auto ops = make_ops(arena);
  const Group all = data_group(world(), *ops);
  const Latents alone = Problem(*ops, c, dtype, {}).sample(2);
  for (const Degrees& degrees : possible_degrees(world().size())) {
    const std::string label = fmt::format("{} sp {} cfg {} ep {}", name, degrees.sp, degrees.cfg, degrees.ep);
    for (const int groups : {1, 2}) {
      Parallel parallel(all, degrees);
      parallel.set_head_groups(groups);
      const Latents together = Problem(*ops, c, dtype, parallel).sample(2);
      EXPECT_TRUE(same_bytes(together.video, alone.video)) << label;
      EXPECT_TRUE(same_bytes(together.audio, alone.audio)) << label;
    }
  }
  EXPECT_EQ(all.transport().traffic().empty(), world().size() == 1);
}

INSTANTIATE_TEST_SUITE_P(Ranks, GoldenPreview,
                         testing::Combine(testing::Values("t2v", "i2v"),
                                          testing::Values(DType::f32, DType::bf16)),
                         [](const auto& info) {
                           return std::get<0>(info.param) +
                                  (std::get<1>(info.param) == DType::f32 ? "_f32" : "_bf16");
                         });

TEST(Degrees, DefaultsAndErrors) {
  EXPECT_EQ(choose_degrees(1, {0, 0, 0}), (Degrees{1, 1, 1}));
  EXPECT_EQ(choose_degrees(8, {0, 0, 0}), (Degrees{4, 2, 4}));
  EXPECT_EQ(choose_degrees(8, {8, 0, 0}), (Degrees{8, 1, 4}));
  EXPECT_EQ(choose_degrees(6, {0, 1, 0}), (Degrees{6, 1, 6}));
  EXPECT_EQ(choose_degrees(3, {0, 0, 1}), (Degrees{3, 1, 1}));
  EXPECT_EQ(choose_degrees(8, {0, 0, 0}, 61e9, 10e9), (Degrees{4, 2, 8}));
  try {
    choose_degrees(6, {4, 0, 0});
    FAIL() << "sp 4 of 6 ranks was taken";
  } catch (const Error& e) {
    EXPECT_EQ(std::string(e.what()),
              "6 ranks cannot work with --sp 4; possible: --sp 6 --cfg 1 or --sp 3 --cfg 2, with --ep 1 or 2 "
              "or 3 or 6");
  }
}

}  // namespace
}  // namespace magi
