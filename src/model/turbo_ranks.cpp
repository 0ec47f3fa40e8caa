// SPDX-License-Identifier: Apache-2.0
// The turbo decoder over ranks: tile after tile of window after window, dealt out in turn. Rank 0 receives a
// round of tiles at a time and hands whole frames on in order, so that its memory follows the ranks, not the
// clip.
#include <cstring>
#include <exception>

#include "model/latent_stats.h"
#include "model/to_device.h"
#include "model/turbo_decoder.h"

namespace magi {
namespace {

constexpr std::int64_t kPixels = 16;  // a latent, along each side
constexpr std::int64_t kColours = 3;

/// Rows and columns of [T,H,W,C] on the host.
Tensor cropped(const Tensor& x, RowRange rows, RowRange columns) {
  if (rows.size() == x.dim(1) && columns.size() == x.dim(2)) return x;
  Tensor result = Tensor::empty(x.dtype(), {x.dim(0), rows.size(), columns.size(), x.dim(3)});
  const std::size_t cell = static_cast<std::size_t>(x.dim(3)) * size_of(x.dtype());
  const std::size_t line = static_cast<std::size_t>(columns.size()) * cell;
  auto* to = static_cast<std::byte*>(result.raw());
  for (std::int64_t t = 0; t < x.dim(0); ++t)
    for (std::int64_t y = rows.first; y < rows.end; ++y, to += line)
      std::memcpy(to,
                  static_cast<const std::byte*>(x.raw()) +
                      static_cast<std::size_t>((t * x.dim(1) + y) * x.dim(2) + columns.first) * cell,
                  line);
  return result;
}

/// What is kept of a decoded tile, into its place in frames [T,H,W,3] on the host.
void place(Tensor& frames, const Tensor& decoded, const TurboTile& tile) {
  const auto pixels = [](RowRange r) { return RowRange{r.first * kPixels, r.end * kPixels}; };
  const RowRange rows = pixels(tile.rows), columns = pixels(tile.columns),
                 from_rows = pixels(tile.decoded_rows), from_columns = pixels(tile.decoded_columns);
  const auto at = [](const Tensor& t, std::int64_t frame, std::int64_t y, std::int64_t x) {
    return static_cast<std::size_t>(((frame * t.dim(1) + y) * t.dim(2) + x) * kColours);
  };
  for (std::int64_t t = 0; t < frames.dim(0); ++t)
    for (std::int64_t y = rows.first; y < rows.end; ++y)
      std::memcpy(frames.data<std::uint8_t>() + at(frames, t, y, columns.first),
                  decoded.data<std::uint8_t>() +
                      at(decoded, t, y - from_rows.first, columns.first - from_columns.first),
                  static_cast<std::size_t>(columns.size() * kColours));
}

}  // namespace

void TurboDecoder::decode_shared(Ops& ops, const Tensor& latent, const FrameSink& sink,
                                 const Group& ranks) const {
  const std::int64_t height = latent.dim(1), width = latent.dim(2), reach = turbo_reach(config_);
  const auto windows = plan_windows(latent.dim(0), config_);
  const TurboTiling tiling = tiling_.value_or(
      choose_tiling(height, width, static_cast<std::int64_t>(windows.size()), ranks.size(), reach));
  const auto tiles = plan_tiles(height, width, tiling, reach);
  const std::size_t units = windows.size() * tiles.size(), count = static_cast<std::size_t>(ranks.size());
  const auto window_of = [&](std::size_t unit) -> const TurboWindow& { return windows[unit / tiles.size()]; };
  const auto tile_of = [&](std::size_t unit) -> const TurboTile& { return tiles[unit % tiles.size()]; };
  const auto kept_frames = [](const TurboWindow& w) {
    return 4 * (w.end - w.first) - (w.opens_clip ? 3 : 0) - w.drop_front - w.drop_back;
  };

  const auto decode = [&](std::size_t unit) {
    const TurboWindow& window = window_of(unit);
    const TurboTile& tile = tile_of(unit);
    const Tensor input = cropped(window_input(latent, window), tile.decoded_rows, tile.decoded_columns);
    const Tensor frames = decode_window(ops, to_device(ops, input, dtype_), window.opens_clip);
    return ops.to_pixels(frames.rows(window.drop_front, kept_frames(window)));
  };
  // What the sink throws comes out at the end: until then the other ranks' tiles are received, or they would
  // wait for ever.
  Tensor picture;
  std::exception_ptr stopped;
  const auto hand_on = [&](const Tensor& frames) {
    if (stopped) return;
    try {
      sink(frames);
    } catch (...) {
      stopped = std::current_exception();
    }
  };
  const auto finish = [&](std::size_t unit, const Tensor& on_device) {
    if (ops.arena().counts_only()) return;
    const Tensor decoded = ops.download(on_device);
    if (tiles.size() == 1) return hand_on(decoded);
    if (unit % tiles.size() == 0)
      picture = Tensor::empty(DType::u8, {decoded.dim(0), height * kPixels, width * kPixels, kColours});
    place(picture, decoded, tile_of(unit));
    if (unit % tiles.size() == tiles.size() - 1) hand_on(picture);
  };

  // Ranks other than 0 run ahead by one tile at most.
  const std::size_t me = static_cast<std::size_t>(ranks.rank());
  std::unique_ptr<Exchange> under_way;
  for (std::size_t first = 0; first < units; first += count) {
    const std::size_t own = first + me;
    if (me != 0) {
      const Tensor frames = own < units ? decode(own) : Tensor{};
      if (under_way) under_way->wait(kPatient);
      under_way = ranks.start_exchange(own < units ? std::vector<Part>{{0, frames}} : std::vector<Part>{}, {},
                                       "frames");
      continue;
    }
    std::vector<Part> receive;
    for (std::size_t r = 1; r < count && first + r < units; ++r) {
      const TurboTile& tile = tile_of(first + r);
      receive.push_back({static_cast<int>(r),
                         ops.arena().alloc(DType::u8, {kept_frames(window_of(first + r)),
                                                       tile.decoded_rows.size() * kPixels,
                                                       tile.decoded_columns.size() * kPixels, kColours})});
    }
    under_way = ranks.start_exchange({}, receive, "frames");
    if (!stopped) finish(own, decode(own));
    under_way->wait(kPatient);
    for (std::size_t r = 0; r < receive.size(); ++r) finish(first + 1 + r, receive[r].data);
  }
  if (me != 0 && under_way) under_way->wait(kPatient);
  if (stopped) std::rethrow_exception(stopped);
}

}  // namespace magi
