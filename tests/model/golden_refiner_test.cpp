// SPDX-License-Identifier: Apache-2.0
// The refiner DiT against the reference: block order, window ranges, velocities; f32 and bf16.
#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

#include "io/checkpoint.h"
#include "io/config.h"
#include "model/refiner.h"
#include "support/backend.h"
#include "support/compare.h"
#include "support/golden.h"

namespace magi {
namespace {

RefinerConfig golden_config() {
  return RefinerConfig::from(
      ConfigNode(load_config(golden_model("config.json"), golden_model()), "config.json"));
}

struct Ranges {
  std::vector<std::int32_t> q, k;
  void add(RowRange query, RowRange key) {
    for (std::int64_t v : {query.first, query.end}) q.push_back(static_cast<std::int32_t>(v));
    for (std::int64_t v : {key.first, key.end}) k.push_back(static_cast<std::int32_t>(v));
  }
};

std::vector<RowRange> split(RowRange rows, std::int64_t step) {
  std::vector<RowRange> parts;
  for (std::int64_t r = rows.first; r < rows.end; r += step)
    parts.push_back({r, std::min(r + step, rows.end)});
  return parts;
}

/// Row ranges of the grid's blocks, and the number of blocks on each axis.
std::vector<RowRange> block_ranges(LatentGrid grid, const std::array<std::int64_t, 3>& block,
                                   std::array<std::int64_t, 3>& counts) {
  const std::array<std::int64_t, 3> size{grid.t, grid.h, grid.w};
  for (int a = 0; a < 3; ++a) counts[a] = (size[a] + block[a] - 1) / block[a];
  std::vector<RowRange> ranges;
  std::int64_t row = 0;
  for (std::int64_t t = 0; t < counts[0]; ++t)
    for (std::int64_t h = 0; h < counts[1]; ++h)
      for (std::int64_t w = 0; w < counts[2]; ++w) {
        const std::int64_t cells = std::min(block[0], size[0] - t * block[0]) *
                                   std::min(block[1], size[1] - h * block[1]) *
                                   std::min(block[2], size[2] - w * block[2]);
        ranges.push_back({row, row + cells});
        row += cells;
      }
  return ranges;
}

/// The reference's list of (query rows, key rows) pairs: what window_attention works out block by block.
Ranges window_ranges(const RefinerConfig& config, LatentGrid grid, std::int64_t rows) {
  std::array<std::int64_t, 3> n{};
  const std::vector<RowRange> blocks = block_ranges(grid, config.block, n);
  const RowRange video{0, grid.cells()}, tail{grid.cells(), rows};
  const std::vector<RowRange> tail_blocks = split(tail, config.block[0] * config.block[1] * config.block[2]);
  Ranges ranges;
  if (tail.size()) {
    for (RowRange q : blocks) ranges.add(q, tail);
    for (RowRange q : tail_blocks) ranges.add(q, video);
    for (RowRange q : tail_blocks) ranges.add(q, tail);
  }
  for (std::int64_t dt = -config.radius[0]; dt <= config.radius[0]; ++dt)
    for (std::int64_t dh = -config.radius[1]; dh <= config.radius[1]; ++dh)
      for (std::int64_t dw = -config.radius[2]; dw <= config.radius[2]; ++dw)
        for (std::int64_t b = 0; b < static_cast<std::int64_t>(blocks.size()); ++b) {
          const std::int64_t t = b / (n[1] * n[2]) + dt, h = b / n[2] % n[1] + dh, w = b % n[2] + dw;
          if (t < 0 || t >= n[0] || h < 0 || h >= n[1] || w < 0 || w >= n[2]) continue;
          ranges.add(blocks[b], blocks[(t * n[1] + h) * n[2] + w]);
        }
  return ranges;
}

Velocity run_forward(const GoldenCase& c, DType dtype) {
  Arena arena = test_arena();
  const auto ops = make_ops(arena);
  const auto model = load_refiner(*ops, *open_checkpoint(golden_model("refiner")), golden_config(), dtype);
  const Tensor latent = c.get("latent"), audio = c.get("audio_latent"), text = c.get("text");
  RefinerRun run(*ops, *model, {latent.dim(2), latent.dim(3), latent.dim(4)}, audio.dim(1),
                 text.reshape({text.dim(1), text.dim(2)}), dtype);
  return run.velocity(latent, audio);
}

Tensor batched(const Tensor& t) {
  Shape shape = t.shape();
  shape.insert(shape.begin(), 1);
  return t.reshape(shape);
}

class RefinerForward : public testing::TestWithParam<std::string> {};

TEST_P(RefinerForward, PackingAndRanges) {
  GOLDEN_CASE(c, "refiner_forward_" + GetParam() + "_f32");
  const RefinerConfig config = golden_config();
  const Tensor latent = c.get("latent"), text = c.get("text");
  const LatentGrid grid{latent.dim(2), latent.dim(3), latent.dim(4)};
  const std::vector<std::int32_t> order = block_order(grid, config.block);
  const PackedSequence s = pack(grid, c.get("audio_latent").dim(1),
                                {Conditioning{text.reshape({text.dim(1), text.dim(2)}), {}}}, order);
  EXPECT_EQ(max_abs_diff(s.coordinates, c.get("coords")), 0);
  const Tensor restore = c.get("token_restore_order");
  for (std::size_t i = 0; i < order.size(); ++i)
    ASSERT_EQ(restore.data<float>()[order[i]], static_cast<float>(i)) << "cell " << order[i];
  const Ranges ranges = window_ranges(config, grid, s.rows());
  const Tensor q = c.raw("q_ranges"), k = c.raw("k_ranges");
  EXPECT_EQ(ranges.q,
            std::vector<std::int32_t>(q.values<std::int32_t>().begin(), q.values<std::int32_t>().end()));
  EXPECT_EQ(ranges.k,
            std::vector<std::int32_t>(k.values<std::int32_t>().begin(), k.values<std::int32_t>().end()));
}

TEST_P(RefinerForward, F32) {
  GOLDEN_CASE(c, "refiner_forward_" + GetParam() + "_f32");
  const Velocity v = run_forward(c, DType::f32);
  expect_close("video velocity", batched(v.video), c.get("video_velocity"), 1e-4);
  if (v.audio.numel()) expect_close("audio velocity", batched(v.audio), c.get("audio_velocity"), 1e-4);
}

TEST_P(RefinerForward, Bf16) {
  GOLDEN_CASE(c, "refiner_forward_" + GetParam() + "_bf16");
  GOLDEN_CASE(exact, "refiner_forward_" + GetParam() + "_f32");
  const Velocity v = run_forward(c, DType::bf16);
  expect_bf16_distance("video velocity", v.video, c.get("video_velocity"), exact.get("video_velocity"), 1.25);
  if (v.audio.numel())
    expect_bf16_distance("audio velocity", v.audio, c.get("audio_velocity"), exact.get("audio_velocity"),
                         1.25);
}

INSTANTIATE_TEST_SUITE_P(Golden, RefinerForward, testing::Values("noaudio", "audio"),
                         [](const auto& info) { return info.param; });

}  // namespace
}  // namespace magi
