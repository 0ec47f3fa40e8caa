// SPDX-License-Identifier: Apache-2.0
// Parts of the picture that the turbo decoder can decode alone. Nothing in it looks at a whole picture (its
// norms go over channels), so a tile with all the latents that can reach its pixels gives the picture's bits.
#pragma once

#include <cstdint>
#include <vector>

#include "core/segments.h"

namespace magi {

struct TurboConfig;

/// In latent cells: what is kept of a tile, and what is decoded for it.
struct TurboTile {
  RowRange rows, columns;
  RowRange decoded_rows, decoded_columns;
  std::int64_t decoded_cells() const { return decoded_rows.size() * decoded_columns.size(); }
};

/// Latents on each side of a pixel's own that can change it. The release's: 15.
std::int64_t turbo_reach(const TurboConfig& config);

/// A picture of height×width latents in `down`×`across` tiles, row by row, as equal as can be.
struct TurboTiling {
  std::int64_t down = 1, across = 1;
};
std::vector<TurboTile> plan_tiles(std::int64_t height, std::int64_t width, TurboTiling tiling,
                                  std::int64_t reach);

/// The tiling with which `ranks` ranks, each taking the next tile of the next window in turn, are through
/// with `windows` windows soonest. What tiles decode twice often costs more than an even share gains.
TurboTiling choose_tiling(std::int64_t height, std::int64_t width, std::int64_t windows, std::int64_t ranks,
                          std::int64_t reach);

}  // namespace magi
