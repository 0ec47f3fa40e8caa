// SPDX-License-Identifier: Apache-2.0
// The refiner's windows (model.md section 5): a video grid in blocks, whose rows lie block by block, blocks
// in t,h,w order.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "core/segments.h"

namespace magi {

/// A grid cut into blocks, which are partial at the far edges. Blocks are numbered in their order.
class BlockGrid {
 public:
  /// Cells of the grid and of a block along t,h,w; all positive.
  BlockGrid(const std::array<std::int64_t, 3>& grid, const std::array<std::int64_t, 3>& block);

  const std::array<std::int64_t, 3>& counts() const { return counts_; }  ///< blocks along t,h,w
  std::int64_t size() const { return counts_[0] * counts_[1] * counts_[2]; }
  std::int64_t index(std::int64_t t, std::int64_t h, std::int64_t w) const {
    return (t * counts_[1] + h) * counts_[2] + w;
  }
  /// First row of a block; of block size(): the number of rows.
  std::int64_t first_row(std::int64_t block) const;
  RowRange rows(RowRange blocks) const { return {first_row(blocks.first), first_row(blocks.end)}; }
  /// Rows from the first to the last that the windows of `blocks` reach: a window may leave out some between.
  RowRange reach(RowRange blocks, const std::array<std::int64_t, 3>& radius) const;

 private:
  std::array<std::int64_t, 3> grid_, block_, counts_;
};

/// Window attention of the blocks `blocks`, or of a rank's share of them, whose keys begin with the video
/// rows `keys`.
struct WindowOptions {
  std::array<std::int64_t, 3> grid{};    ///< t,h,w cells
  std::array<std::int64_t, 3> block{};   ///< cells a block
  std::array<std::int64_t, 3> radius{};  ///< blocks to each side
  RowRange blocks;                       ///< whose rows are the queries
  RowRange keys;                         ///< at least BlockGrid::reach of `blocks`

  /// All blocks.
  static WindowOptions whole(const std::array<std::int64_t, 3>& grid,
                             const std::array<std::int64_t, 3>& block,
                             const std::array<std::int64_t, 3>& radius);
};

/// Audio and text queries, which attend everything, take the video's keys in this many parts (fewer where
/// there are fewer blocks). A constant of the model's arithmetic: whoever computes a part, partial results
/// are merged in the order of the parts. 48 divides by most numbers of ranks, and 4080 blocks (1920×1088, 10
/// s) divide by it.
inline constexpr std::int64_t kWindowParts = 48;

/// The blocks of each part, in order: as equal as can be.
std::vector<RowRange> window_parts(std::int64_t blocks);

}  // namespace magi
