// SPDX-License-Identifier: Apache-2.0
// Plans for many GPUs: what is recommended fits and is the quickest that does.
#include "run/gpu_plan.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "run/stage_memory.h"
#include "run/tiny_root.h"
#include "support/expect_error.h"
#include "support/temp_dir.h"
#include "text/tokenizer.h"

namespace magi {
namespace {

constexpr std::size_t kGiB = std::size_t{1} << 30;

GpuPlan plan_540p(const std::vector<int>& gpus, const std::vector<std::string>& networks,
                  std::size_t bytes_a_gpu = kH200Bytes, ExpertFormat experts = ExpertFormat::nvfp4) {
  const CheckpointRoot root = CheckpointRoot::release();
  const Request request = Request::from_json({{"prompt", "x"}, {"preset", "540p"}}, root.defaults(), "test");
  EngineOptions options;
  options.experts = experts;
  return plan_gpus(root, request, options, gpus, networks, bytes_a_gpu);
}

TEST(GpuPlan, RecommendsTheQuickestThatFits) {
  for (const std::size_t gib : {20, 48, 80, 139}) {
    const GpuPlan plan = plan_540p({1, 2, 8, 16, 64}, {"nvlink", "infiniband"}, gib * kGiB);
    ASSERT_EQ(plan.counts.size(), 10U);
    for (const GpuCount& count : plan.counts) {
      int defaults = 0;
      for (const GpuChoice& c : count.choices) {
        EXPECT_EQ(c.prediction.degrees.sp * c.prediction.degrees.cfg, count.gpus);
        EXPECT_EQ(c.fits, c.bytes + 2e9 <= static_cast<double>(gib * kGiB)) << gib << " GiB, " << count.gpus;
        defaults += c.is_default;
        if (c.fits) {
          ASSERT_NE(count.recommended(), nullptr);
          EXPECT_LE(count.recommended()->prediction.seconds, c.prediction.seconds);
        }
      }
      EXPECT_EQ(defaults, 1) << count.gpus;
      EXPECT_EQ(count.recommended() != nullptr,
                std::ranges::any_of(count.choices, [](const GpuChoice& c) { return c.fits; }));
    }
  }
}

/// The table of docs/ranks.md.
TEST(GpuPlan, ReleaseAt540p) {
  const GpuPlan plan = plan_540p({8, 16, 64}, {"nvlink", "infiniband"});
  EXPECT_EQ(plan.branch_rows, (std::vector<std::int64_t>{58023, 57609}));
  EXPECT_NEAR(plan.alone_seconds, 7.41, 0.1);
  double last = plan.alone_seconds;
  for (std::size_t i = 0; i < 3; ++i) {
    const GpuChoice *nvlink = plan.counts[i].recommended(), *infiniband = plan.counts[i + 3].recommended();
    ASSERT_TRUE(nvlink && infiniband);
    if (plan.counts[i].gpus > 8) {
      EXPECT_EQ(nvlink->prediction.degrees.cfg, 2);
    }
    EXPECT_LT(nvlink->prediction.seconds, last);
    EXPECT_LE(nvlink->prediction.seconds, infiniband->prediction.seconds);
    EXPECT_LT(nvlink->prediction.efficiency, 1);
    last = nvlink->prediction.seconds;
  }
}

/// 228 GB of bf16 weights: two GPUs of 139 GiB must share the experts, and one cannot hold them.
TEST(GpuPlan, WhatDoesNotFitIsMarked) {
  const GpuPlan plan = plan_540p({1, 2}, {"nvlink"}, kH200Bytes, ExpertFormat::bf16);
  EXPECT_EQ(plan.counts[0].recommended(), nullptr);
  EXPECT_NE(to_text(plan).find("no choice fits"), std::string::npos);
  const GpuChoice* two = plan.counts[1].recommended();
  ASSERT_NE(two, nullptr);
  EXPECT_EQ(two->prediction.degrees.ep, 2);
  EXPECT_NE(to_text(plan).find("does not fit"), std::string::npos);
  const nlohmann::json j = to_json(plan);
  EXPECT_TRUE(j["counts"][0]["recommended"].is_null());
  EXPECT_EQ(j["counts"][1]["recommended"]["ep"], 2);
}

/// What a choice says to be needed beside weights is what the busiest rank needs, whichever branch is the
/// longer one; ranks where branches' parts meet may need a little more.
TEST(GpuPlan, CountsTheBusiestRank) {
  TempDir directory;
  write_tiny_root(directory.path() / "root", 1);
  const CheckpointRoot root(directory.path() / "root", std::nullopt);
  for (const std::string negative : {"x", "A long list of all that nobody wants to see or hear."}) {
    const Request request = Request::from_json({{"prompt", "A fox."},
                                                {"negative_prompt", negative},
                                                {"width", 80},
                                                {"height", 64},
                                                {"seconds", 0.4}},
                                               root.defaults(), "test");
    const StageSizes sizes = stage_sizes(Tokenizer::load(root.text_encoder() / "tokenizer.json"), request);
    for (const GpuCount& count : plan_gpus(root, request, {}, {1, 2, 3, 4}, {"nvlink", "pcie"}, kGiB).counts)
      for (const GpuChoice& c : count.choices) {
        double most = 0;
        for (int r = 0; r < count.gpus; ++r) {
          const StageMemory m = stage_memory(Stage::preview, root, request, sizes, {},
                                             {r, c.prediction.degrees, c.prediction.windows});
          most = std::max(most, kGpuScratch * static_cast<double>(m.scratch_bytes) +
                                    static_cast<double>(m.input_bytes + m.window_bytes));
        }
        EXPECT_GE(c.scratch_bytes, 0.95 * most)
            << count.gpus << " over " << count.network << ", cfg " << c.prediction.degrees.cfg << " ep "
            << c.prediction.degrees.ep;
        EXPECT_LE(c.scratch_bytes, most);
      }
  }
}

TEST(GpuPlan, RootsWithPackedExpertsCountFourBits) {
  TempDir directory;
  write_tiny_root(directory.path() / "root", 1);
  const CheckpointRoot root(directory.path() / "root", std::nullopt);
  const Request request = Request::from_json({{"prompt", "x"}}, root.defaults(), "test");
  EngineOptions options;
  EXPECT_EQ(plan_gpus(root, request, options, {2}, {"nvlink"}, kGiB).expert_bits, 16);
  options.experts = ExpertFormat::nvfp4;
  EXPECT_EQ(plan_gpus(root, request, options, {2}, {"nvlink"}, kGiB).expert_bits, 4.5);
}

TEST(GpuPlan, RefusesNonsense) {
  for (const int gpus : {0, -1, kMostGpus + 1})
    expect_error([&] { plan_540p({gpus}, {"nvlink"}); }, std::to_string(gpus));
  expect_error([] { plan_540p({2}, {"string"}); }, "infiniband");
  const CheckpointRoot root = CheckpointRoot::release();
  const Request f32 = Request::from_json({{"prompt", "x"}, {"dtype", "f32"}}, root.defaults(), "test");
  expect_error([&] { plan_gpus(root, f32, {}, {2}, {"nvlink"}, kH200Bytes); }, "bf16");
}

}  // namespace
}  // namespace magi
