// SPDX-License-Identifier: Apache-2.0
// The refiner over ranks gives the bits of one rank: golden clips, and grids that no number of ranks divides.
#include <gtest/gtest.h>

#include <algorithm>

#include "io/checkpoint.h"
#include "io/config.h"
#include "ranks/ranks_testing.h"
#include "sample/refiner_sampler.h"
#include "support/golden.h"

namespace magi {
namespace {

Tensor first_of(const Tensor& t) {
  return t.reshape(Shape(t.shape().begin() + 1, t.shape().end()));
}

RefinerConfig golden_config() {
  return RefinerConfig::from(
      ConfigNode(load_config(golden_model("config.json"), golden_model()), "config.json"));
}

/// This rank's backend, and all ranks.
struct Backend {
  Arena arena = rank_arena();
  std::unique_ptr<Ops> ops = make_ops(arena);
  Group all = data_group(world(), *ops);

  /// The halves of the ranks, or all together.
  std::vector<Parallel> sharings() const {
    std::vector<Parallel> list;
    for (const Degrees& degrees : possible_degrees(all.size()))
      if (degrees.ep == 1) list.emplace_back(all, degrees);
    return list;
  }
  std::unique_ptr<Refiner> refiner(const RefinerConfig& config, DType dtype) const {
    return load_refiner(*ops, *open_checkpoint(golden_model("refiner")), config, dtype);
  }
};

class GoldenRefinerRanks : public testing::TestWithParam<DType> {};

TEST_P(GoldenRefinerRanks, ASampledClipHasTheBitsOfOneRank) {
  GOLDEN_CASE(c, GetParam() == DType::f32 ? "refiner_sample_f32" : "refiner_sample_bf16");
  const Backend backend;
  const auto model = backend.refiner(golden_config(), GetParam());
  const Tensor start = first_of(c.get("renoised"));
  const auto sample = [&](const Parallel& parallel) {
    const LatentGrid grid{start.dim(1), start.dim(2), start.dim(3)};
    const auto branch = [&](const char* name) {
      return RefinerRun(*backend.ops, *model, grid, 0, first_of(c.get(name)), GetParam(), parallel);
    };
    RefinerRun text = branch("text"), null_text = branch("null_text");
    Progress progress;
    GuidanceOptions guidance;
    guidance.video_scale = 2;
    return sample_refiner(text, null_text, start.clone(), make_schedule(2, 5), guidance, progress);
  };
  const Tensor alone = sample({});
  for (const Parallel& parallel : backend.sharings())
    EXPECT_TRUE(same_bytes(sample(parallel), alone)) << "cfg " << parallel.degrees().cfg;
}

TEST_P(GoldenRefinerRanks, AnyGridAndAnyTextHaveTheBitsOfOneRank) {
  if (!std::filesystem::exists(golden_model("refiner"))) GTEST_SKIP() << "no golden refiner";
  const RefinerConfig released = golden_config();
  RefinerConfig mixed = released;  // layers that attend everything among those with windows
  mixed.window_layers = {0, released.layers - 1};
  struct Case {
    RefinerConfig config;
    LatentGrid grid;
    std::int64_t audio, text;
  };
  // One block; one latent frame; fewer blocks than ranks; no text; blocks that no number of ranks divides.
  const Case cases[] = {{released, {1, 1, 1}, 0, 3}, {released, {1, 7, 9}, 0, 1},
                        {released, {3, 2, 2}, 5, 2}, {released, {5, 7, 9}, 0, 0},
                        {released, {5, 7, 9}, 0, 5}, {released, {7, 5, 6}, 11, 33},
                        {mixed, {5, 7, 3}, 2, 6}};
  const Backend backend;
  unsigned seed = 1;
  for (const Case& c : cases) {
    const auto model = backend.refiner(c.config, GetParam());
    const Tensor latent = random_normal(++seed, {c.config.channels.video, c.grid.t, c.grid.h, c.grid.w}),
                 audio = random_normal(++seed, {c.audio, c.config.channels.audio}),
                 text = random_normal(++seed, {c.text, c.config.channels.text});
    const auto velocity = [&](const Parallel& parallel) {
      return RefinerRun(*backend.ops, *model, c.grid, c.audio, text, GetParam(), parallel)
          .velocity(latent, audio);
    };
    const Velocity alone = velocity({});
    for (const Parallel& parallel : backend.sharings()) {
      const Velocity together = velocity(parallel);
      EXPECT_TRUE(same_bytes(together.video, alone.video) && same_bytes(together.audio, alone.audio))
          << c.grid.t << "x" << c.grid.h << "x" << c.grid.w << ", " << c.text << " text rows, cfg "
          << parallel.degrees().cfg;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Ranks, GoldenRefinerRanks, testing::Values(DType::f32, DType::bf16),
                         [](const auto& info) { return std::string(name_of(info.param)); });

/// Every row belongs to one rank, whatever their number, and shares are as equal as parts allow.
TEST(RefinerRowsTest, RanksShareAllRows) {
  const std::array<std::int64_t, 3> block{8, 4, 4};
  for (const auto& [grid, others] :
       {std::pair{std::array<std::int64_t, 3>{63, 68, 120}, 1000},
        {{9, 68, 120}, 0},  // the second half of the blocks has an eighth of the first's cells
        {{5, 7, 9}, 0},
        {{1, 1, 1}, 3}}) {
    const std::int64_t cells = grid[0] * grid[1] * grid[2];
    const RefinerRows rows(grid, block, cells + others, world().host());
    const BlockGrid blocks(grid, block);
    std::int64_t next = 0, largest_part = 0;
    for (const RowRange& part : window_parts(blocks.size()))
      largest_part = std::max(largest_part, blocks.rows(part).size());
    for (int r = 0; r < world().size(); ++r) {
      EXPECT_EQ(rows.rows(r).first, next);
      next = rows.rows(r).end;
      const double even = static_cast<double>(cells) / world().size();
      EXPECT_LE(static_cast<double>(rows.rows(r).size()), even + static_cast<double>(largest_part + others));
    }
    EXPECT_EQ(next, cells + others);
  }
}

}  // namespace
}  // namespace magi
