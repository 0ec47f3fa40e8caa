// SPDX-License-Identifier: Apache-2.0
// The refiner's window attention (model.md section 5) as a plan. Rows of a block are consecutive, blocks are
// in t,h,w order, so the window of a block is one run of chunks for each (t, h) pair of neighbours.
#include <algorithm>
#include <array>

#include "ops/cpu/attention_plan.h"
#include "ops/cpu/cpu_ops.h"

namespace magi {
namespace {

using Index3 = std::array<std::int64_t, 3>;

/// The grid of blocks: chunks of each block, in block order.
struct BlockGrid {
  Index3 blocks{};
  std::vector<RowRange> rows;
  std::vector<AttentionPlan::ChunkRun> chunks;

  std::size_t index(std::int64_t t, std::int64_t h, std::int64_t w) const {
    return static_cast<std::size_t>((t * blocks[1] + h) * blocks[2] + w);
  }
};

BlockGrid cut_blocks(const WindowOptions& window, std::int64_t width, AttentionPlan& plan) {
  BlockGrid grid;
  for (std::size_t axis = 0; axis < 3; ++axis) {
    grid.blocks[axis] = (window.grid[axis] + window.block[axis] - 1) / window.block[axis];
  }
  const auto cells = [&](std::size_t axis, std::int64_t block) {
    return std::min(window.block[axis], window.grid[axis] - block * window.block[axis]);
  };
  std::int64_t row = 0;
  for (std::int64_t t = 0; t < grid.blocks[0]; ++t) {
    for (std::int64_t h = 0; h < grid.blocks[1]; ++h) {
      for (std::int64_t w = 0; w < grid.blocks[2]; ++w) {
        const std::int64_t end = row + cells(0, t) * cells(1, h) * cells(2, w);
        grid.rows.push_back({row, end});
        grid.chunks.push_back(plan.add_chunks(row, end, width));
        row = end;
      }
    }
  }
  return grid;
}

}  // namespace

AttentionPlan plan_window(const WindowOptions& window, std::int64_t rows, std::int64_t head_dim) {
  AttentionPlan plan;
  const std::int64_t width = chunk_keys(head_dim);
  const BlockGrid grid = cut_blocks(window, width, plan);
  const std::int64_t video_rows = grid.rows.back().end;
  const AttentionPlan::ChunkRun others = plan.add_chunks(video_rows, rows, width);

  const auto low = [&](std::size_t axis, std::int64_t block) {
    return std::max<std::int64_t>(0, block - window.radius[axis]);
  };
  const auto high = [&](std::size_t axis, std::int64_t block) {
    return window.radius[axis] < grid.blocks[axis]
               ? std::min(grid.blocks[axis] - 1, block + window.radius[axis])
               : grid.blocks[axis] - 1;
  };
  for (std::int64_t t = 0; t < grid.blocks[0]; ++t) {
    for (std::int64_t h = 0; h < grid.blocks[1]; ++h) {
      for (std::int64_t w = 0; w < grid.blocks[2]; ++w) {
        const auto first_run = static_cast<std::int32_t>(plan.runs.size());
        for (std::int64_t kt = low(0, t); kt <= high(0, t); ++kt) {
          for (std::int64_t kh = low(1, h); kh <= high(1, h); ++kh) {
            plan.runs.push_back({grid.chunks[grid.index(kt, kh, low(2, w))].first,
                                 grid.chunks[grid.index(kt, kh, high(2, w))].end});
          }
        }
        plan.runs.push_back(others);
        const RowRange& block = grid.rows[grid.index(t, h, w)];
        plan.add_tiles(block.first, block.end, first_run, static_cast<std::int32_t>(plan.runs.size()));
      }
    }
  }
  plan.runs.push_back({0, others.end});
  const auto run = static_cast<std::int32_t>(plan.runs.size());
  plan.add_tiles(video_rows, rows, run - 1, run);
  return plan;
}

void CpuOps::do_window_attention(const Tensor& qkv, const WindowOptions& window,
                                 const AttentionOptions& options, Tensor& y) {
  attend(qkv, plan_window(window, qkv.dim(0), options.head_dim), options, y);
}

}  // namespace magi
