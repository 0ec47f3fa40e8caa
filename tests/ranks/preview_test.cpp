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
    for (const int groups : {0, 1, 2}) {  // of messages; 0: windows, where there are any
      Parallel parallel(all, degrees);
      parallel.set_windows(groups == 0);
      parallel.set_head_groups(std::max(groups, 1));
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

TEST(Windows, WhatRanksWriteIsThereAfterTheArrival) {
  Arena arena = rank_arena(std::size_t{1} << 26);
  const auto ops = make_ops(arena);
  const Group all = data_group(world(), *ops);
  const int n = all.size(), me = all.rank();
  constexpr std::int64_t kCount = 5000;
  const auto bytes = static_cast<std::size_t>(n) * kCount * sizeof(float);
  std::shared_ptr<Window> window = all.open_window(bytes);
  if (!window) {
    EXPECT_TRUE(n == 1 || tests_on_cuda()) << "processes of one machine share memory";
    GTEST_SKIP() << "these ranks do not write to each other's memory";
  }
  for (int r = 0; r < n; ++r) EXPECT_EQ(reinterpret_cast<std::uintptr_t>(window->on(r)) % 256, 0U);
  const auto row = [&](int on, int from) {  // of rank `from`, in the piece of rank `on`
    std::byte* const at = all.on(*window, on) + static_cast<std::size_t>(from) * kCount * sizeof(float);
    return Tensor::view(at, DType::f32, {1, kCount}, window, window->device());
  };
  const auto value = [](int round, int from, int to) {
    return static_cast<float>(100 * round + 10 * from + to);
  };
  for (int round = 0; round < 20; ++round) {
    for (int r = 0; r < n; ++r) {
      const Tensor message = Tensor::empty(DType::f32, {1, kCount});
      std::ranges::fill(Tensor(message).values<float>(), value(round, me, r));
      ops->copy(row(r, me), ops->upload(message));
    }
    all.start_arrival(window, 4 * kCount * (n - 1), 4 * kCount * (n - 1), "test")->wait();
    for (int r = 0; r < n; ++r) {
      const Tensor got = ops->download(row(me, r));
      EXPECT_TRUE(std::ranges::all_of(got.values<float>(), [&](float v) { return v == value(round, r, me); }))
          << "round " << round << ", from rank " << r;
    }
    all.start_arrival(window, 0, 0, "test")->wait();
  }
  EXPECT_EQ(all.transport().traffic().at("test of " + all.name()).bytes_sent,
            20 * (4 * kCount + 32) * (n - 1));

  std::byte* const before = window->on(me);
  const std::shared_ptr<Window> other = all.open_window(bytes);
  EXPECT_NE(other->on(me), before) << "one window for two";
  window = nullptr;
  EXPECT_EQ(all.open_window(bytes)->on(me), before) << "let go, and not lent again";
  EXPECT_GE(all.open_window(2 * bytes)->bytes(), 2 * bytes);
  if (tests_on_cuda()) return;
  EXPECT_EQ(all.open_window(std::size_t{1} << 50), nullptr) << "more than there is";
}

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
