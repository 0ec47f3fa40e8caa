// SPDX-License-Identifier: Apache-2.0
// The memory that a dry run tells of a rank is the memory that the rank takes; budgets hold over ranks.
#include <gtest/gtest.h>

#include "core/memory_ledger.h"
#include "io/checkpoint.h"
#include "model/preview.h"
#include "ranks/ranks_testing.h"
#include "run/memory_plan.h"
#include "run/pipeline.h"
#include "run/stage_memory.h"
#include "run/tiny_root.h"
#include "support/expect_error.h"
#include "support/temp_dir.h"

namespace magi {
namespace {

namespace fs = std::filesystem;

constexpr std::size_t kMiB = std::size_t{1} << 20, kGiB = std::size_t{1} << 30;

std::string text_of(const Degrees& d) {
  return fmt::format("rank {} of sp {} cfg {} ep {}", world().rank(), d.sp, d.cfg, d.ep);
}

/// Rank 0's tiny root, which all ranks know.
class RankMemory : public testing::Test {
 protected:
  RankMemory() : directory_(world().host().broadcast(own_.path().string(), 0)) {
    if (world().rank() == 0) write_tiny_root(directory_ / "root", 1);
    world().host().barrier();
    root_.emplace(directory_ / "root", std::nullopt);
  }
  ~RankMemory() override { world().host().barrier(); }

  Request request(nlohmann::json changes) const {
    nlohmann::json j{{"prompt", "A fox."}, {"width", 80}, {"height", 64}, {"seconds", 0.4}, {"steps", 1}};
    j.update(changes);
    return Request::from_json(j, root_->defaults(), "test");
  }
  EngineOptions engine(const Degrees& degrees) const {
    EngineOptions options{rank_device()};
    options.world = {std::shared_ptr<void>(), &world()};
    options.degrees = degrees;
    return options;
  }
  /// Texts of sizes_.
  TextFeatures text() const {
    const std::int64_t width = PreviewConfig::from(root_->config()).channels.text;
    return {
        random_normal(1, {sizes_.prompt_rows, width}), random_normal(2, {sizes_.negative_rows, width}), {}};
  }
  static SampleState noise(const Request& r) {
    SampleState start;
    start.latents = {random_normal(3, {48, r.latent_frames(), r.height / 16, r.width / 16}),
                     random_normal(4, {r.audio_latents(), 64})};
    return start;
  }

  TempDir own_;
  fs::path directory_;
  std::optional<CheckpointRoot> root_;
  const StageSizes sizes_{7, 3, {}};
};

TEST_F(RankMemory, ScratchIsWhatEachRankTakes) {
  for (const std::string dtype : {"f32", "bf16"}) {
    const Request r = request({{"dtype", dtype}, {"refine", "160x96"}, {"refiner_steps", 1}});
    for (const Degrees& degrees : possible_degrees(world().size())) {
      Progress progress;
      Pipeline pipeline(*root_, progress, engine(degrees));
      const auto expect_peak_of = [&](Stage stage) {
        const DryRank rank{world().rank(), degrees, true};
        EXPECT_EQ(pipeline.take_scratch_peak(),
                  stage_memory(stage, *root_, r, sizes_, engine(degrees), rank).scratch_bytes)
            << name_of(stage) << ", " << dtype << ", " << text_of(degrees);
      };
      const Latents clean = pipeline.denoise(r, text(), {}, noise(r));
      expect_peak_of(Stage::preview);
      const Tensor refined = pipeline.refine(
          r, text(), clean.video,
          random_normal(5, {48, 2 * r.latent_frames() - 1, r.refine->height / 16, r.refine->width / 16}));
      expect_peak_of(Stage::refiner);
      pipeline.decode_video(r, refined, [](const Tensor&) {});
      expect_peak_of(Stage::video);
    }
  }
}

/// Windows where there are any, else messages: both are known.
TEST_F(RankMemory, OfThePreviewByWindowsAndByMessages) {
  const Request r = request({{"dtype", "bf16"}});
  const PreviewConfig config = PreviewConfig::from(root_->config());
  Arena arena = rank_arena();
  const auto ops = make_ops(arena);
  const Group all = data_group(world(), *ops);
  const std::size_t whole = stage_memory(Stage::preview, *root_, r, sizes_, {rank_device()}).weight_bytes;
  std::size_t by_windows = 0;
  for (const Degrees& degrees : possible_degrees(world().size()))
    for (const bool windows : {true, false}) {
      Parallel parallel(all, degrees);
      parallel.set_windows(windows);
      const auto store = open_checkpoint(root_->preview());
      const auto model = load_preview(*ops, *store, config, DType::bf16, {}, parallel);
      const SampleState start = noise(r);
      PreviewRun run(*ops, *model,
                     pack({r.latent_frames(), r.height / 16, r.width / 16}, r.audio_latents(),
                          guidance_branches(text().prompt, text().negative, {}, r.guidance)),
                     DType::bf16);
      arena.reset_peak();
      run.velocity(start.latents.video, start.latents.audio, 500);
      const StageMemory memory = stage_memory(Stage::preview, *root_, r, sizes_, engine(degrees),
                                              {world().rank(), degrees, windows});
      const std::string label = text_of(degrees) + (windows ? ", windows" : ", messages");
      EXPECT_EQ(arena.peak_bytes(), memory.scratch_bytes) << label;
      EXPECT_EQ(memory.weight_bytes<whole, degrees.ep> 1) << label;
      EXPECT_EQ(memory.window_bytes > 0, windows && std::max(degrees.sp, degrees.ep) > 1) << label;
      if (windows) by_windows = memory.scratch_bytes;
      if (!windows && degrees.sp > 1) {
        EXPECT_GT(memory.scratch_bytes, by_windows) << label;
      }
    }
}

TEST_F(RankMemory, WhereOneLacksRoomAllAreTold) {
  const int n = world().size(), poor = 1;
  const Degrees degrees{n, 1, 1};
  const DryRank own{world().rank(), degrees, true};
  const Request r = request({{"refine", "480x320"}});
  const auto with_room = [&](std::size_t own_room) {
    require_room(*root_, r, sizes_, engine(degrees), world().rank() == poor ? own_room : kGiB, own);
  };
  const std::size_t video = stage_memory(Stage::video, *root_, r, sizes_, engine(degrees), own).least_bytes();
  EXPECT_NO_THROW(with_room(video));
  expect_error([&] { with_room(video - 1); },
               fmt::format("rank {}: {}: the video stage of 80x64, 0.4 s, refined to 480x320 needs", poor,
                           to_string(Device{rank_device().kind, poor})));
  expect_error([&] { with_room(video - 1); }, "are free: 80x64 without --refine would fit");
  expect_error([&] { with_room(1); }, "no smaller size would fit");
}

/// Layers come from the disk on every rank, each within its own budget.
TEST_F(RankMemory, TheSameBytesWithinBudgets) {
  if (tests_on_cuda()) GTEST_SKIP() << "the budget of this test is the host's";
  for (const std::string dtype : {"f32", "bf16"})
    for (const Degrees& degrees : possible_degrees(world().size())) {
      const Request r = request({{"dtype", dtype}, {"steps", 2}});
      const auto denoise = [&](const EngineOptions& options) {
        Progress progress;
        Pipeline pipeline(*root_, progress, options);
        return pipeline.denoise(r, text(), {}, noise(r));
      };
      const Latents resident = denoise(engine(degrees));
      MemoryLedger& host = MemoryLedger::of({});
      EngineOptions options = engine(degrees);
      options.ram_bytes = 64 * kGiB;
      const std::size_t base = *options.ram_bytes - memory_limits(options).host;  // of the process itself
      const std::size_t loading = largest_stored_layer(Stage::preview, *root_);
      const StageMemory memory =
          stage_memory(Stage::preview, *root_, r, sizes_, engine(degrees), {world().rank(), degrees, true});
      options.ram_bytes = base + host.used_bytes() + memory.least_bytes() + loading + 65 * kMiB;
      const StagePlan plan =
          plan_stage(memory, {0, memory_limits(options).host - host.used_bytes(), false, true}, {}, loading);
      EXPECT_GT(plan.read_bytes, 0U) << "the budget does not force streaming: " << text_of(degrees);
      const std::size_t before = host.used_bytes();
      host.reset_peak();
      const Latents streamed = denoise(options);
      EXPECT_TRUE(same_bytes(streamed.video, resident.video)) << dtype << ", " << text_of(degrees);
      EXPECT_TRUE(same_bytes(streamed.audio, resident.audio)) << dtype << ", " << text_of(degrees);
      EXPECT_LE(host.peak_bytes() - before, plan.host_bytes + kMiB) << dtype << ", " << text_of(degrees);
    }
}

}  // namespace
}  // namespace magi
