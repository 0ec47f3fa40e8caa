// SPDX-License-Identifier: Apache-2.0
#include "ops/window.h"

#include <algorithm>

#include "core/error.h"

namespace magi {

BlockGrid::BlockGrid(const std::array<std::int64_t, 3>& grid, const std::array<std::int64_t, 3>& block)
    : grid_(grid), block_(block) {
  for (std::size_t axis = 0; axis < 3; ++axis) {
    require(grid[axis] > 0 && block[axis] > 0, "blocks along axis {}: a grid of {} in blocks of {}", axis,
            grid[axis], block[axis]);
    counts_[axis] = (grid[axis] - 1) / block[axis] + 1;
  }
}

std::int64_t BlockGrid::first_row(std::int64_t block) const {
  if (block >= size()) return grid_[0] * grid_[1] * grid_[2];
  const std::int64_t t = block / (counts_[1] * counts_[2]), h = block / counts_[2] % counts_[1],
                     w = block % counts_[2];
  const std::int64_t frames = std::min(block_[0], grid_[0] - t * block_[0]);
  const std::int64_t lines = std::min(block_[1], grid_[1] - h * block_[1]);
  return t * block_[0] * grid_[1] * grid_[2] + frames * (h * block_[1] * grid_[2] + lines * w * block_[2]);
}

RowRange BlockGrid::reach(RowRange blocks, const std::array<std::int64_t, 3>& radius) const {
  if (blocks.size() <= 0) return {first_row(blocks.first), first_row(blocks.first)};
  std::int64_t low = size(), high = 0;
  for (std::int64_t block = blocks.first; block < blocks.end; ++block) {
    const std::array<std::int64_t, 3> at{block / (counts_[1] * counts_[2]), block / counts_[2] % counts_[1],
                                         block % counts_[2]};
    std::array<std::int64_t, 3> from, to;
    for (std::size_t axis = 0; axis < 3; ++axis) {
      from[axis] = radius[axis] < at[axis] ? at[axis] - radius[axis] : 0;
      to[axis] = radius[axis] < counts_[axis] - 1 - at[axis] ? at[axis] + radius[axis] : counts_[axis] - 1;
    }
    low = std::min(low, index(from[0], from[1], from[2]));
    high = std::max(high, index(to[0], to[1], to[2]) + 1);
  }
  return rows({low, high});
}

WindowOptions WindowOptions::whole(const std::array<std::int64_t, 3>& grid,
                                   const std::array<std::int64_t, 3>& block,
                                   const std::array<std::int64_t, 3>& radius) {
  const BlockGrid blocks(grid, block);
  return {grid, block, radius, {0, blocks.size()}, {0, blocks.first_row(blocks.size())}};
}

std::vector<RowRange> window_parts(std::int64_t blocks) {
  const std::int64_t count = std::min(blocks, kWindowParts);
  std::vector<RowRange> parts;
  for (std::int64_t i = 0; i < count; ++i) parts.push_back({i * blocks / count, (i + 1) * blocks / count});
  return parts;
}

}  // namespace magi
