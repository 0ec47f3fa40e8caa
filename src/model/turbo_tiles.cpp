// SPDX-License-Identifier: Apache-2.0
#include "model/turbo_tiles.h"

#include <algorithm>

#include "model/turbo_decoder.h"

namespace magi {
namespace {

constexpr std::int64_t kMostTiles = 8;  // along an axis

/// Part `index` of `count` of `total`, and with `reach` more on each side.
RowRange part(std::int64_t total, std::int64_t count, std::int64_t index) {
  return {index * total / count, (index + 1) * total / count};
}
RowRange widened(RowRange range, std::int64_t reach, std::int64_t total) {
  return {std::max<std::int64_t>(range.first - reach, 0), std::min(range.end + reach, total)};
}

}  // namespace

std::int64_t turbo_reach(const TurboConfig& config) {
  // Backwards from a pixel, in cells of the resolution at hand: each convolution adds half its kernel; before
  // an upsampling to twice the size, it takes half as many cells, rounded up.
  const auto resnets = [&](std::int64_t count, bool depthwise) {
    return 2 * count * (depthwise ? config.depthwise_kernel / 2 : 1);
  };
  std::int64_t cells = 1;  // conv_out
  std::int64_t channels = config.blocks.empty() ? 0 : config.blocks.front().channels;
  std::vector<bool> widens;  // blocks that begin with a resnet of their own
  for (const TurboConfig::Block& block : config.blocks) {
    widens.push_back(block.channels != channels);
    channels = block.channels;
  }
  for (std::size_t i = config.blocks.size(); i-- > 0;) {
    const TurboConfig::Block& block = config.blocks[i];
    cells += resnets(block.resnets, block.depthwise);
    if (block.upsample_space) cells = (cells + 1 + 1) / 2;
    if (widens[i]) cells += resnets(1, block.depthwise);
  }
  return cells + resnets(config.mid_resnets, config.mid_depthwise) + 1;  // conv_in
}

std::vector<TurboTile> plan_tiles(std::int64_t height, std::int64_t width, TurboTiling tiling,
                                  std::int64_t reach) {
  std::vector<TurboTile> tiles;
  for (std::int64_t y = 0; y < tiling.down; ++y) {
    for (std::int64_t x = 0; x < tiling.across; ++x) {
      const RowRange rows = part(height, tiling.down, y), columns = part(width, tiling.across, x);
      tiles.push_back({rows, columns, widened(rows, reach, height), widened(columns, reach, width)});
    }
  }
  return tiles;
}

TurboTiling choose_tiling(std::int64_t height, std::int64_t width, std::int64_t windows, std::int64_t ranks,
                          std::int64_t reach) {
  TurboTiling best;
  std::int64_t least = 0;
  for (std::int64_t down = 1; down <= std::min(height, kMostTiles); ++down) {
    for (std::int64_t across = 1; across <= std::min(width, kMostTiles); ++across) {
      std::int64_t largest = 0;
      for (const TurboTile& tile : plan_tiles(height, width, {down, across}, reach))
        largest = std::max(largest, tile.decoded_cells());
      const std::int64_t cost = (windows * down * across + ranks - 1) / ranks * largest;
      if (least != 0 && cost >= least) continue;
      least = cost;
      best = {down, across};
    }
  }
  return best;
}

}  // namespace magi
