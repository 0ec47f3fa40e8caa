// SPDX-License-Identifier: Apache-2.0
#include "model/tokens.h"

#include <algorithm>
#include <array>
#include <cmath>

#include "core/in_parts.h"

namespace magi {
namespace {

std::int64_t cell_at(const std::vector<std::int32_t>& order, std::int64_t row) {
  return order.empty() ? row : order[static_cast<std::size_t>(row)];
}

/// Calls move(row, cell, channel) for all of them. Tiles, and in them one channel after the other, so that
/// lines of a plane are read or filled whole: channel by channel a cell's values lie at the same place of a
/// cache where a plane's size is a power of two times a small number, and drive each other out.
template <typename Move>
void in_tiles(std::int64_t cells, std::int64_t channels, const std::vector<std::int32_t>& order, Move move) {
  constexpr std::int64_t tile = 128;
  const std::int32_t* cell_of = order.empty() ? nullptr : order.data();
  in_ranges(cells * channels, tile * channels, [&](std::int64_t from, std::int64_t to) {
    for (std::int64_t first = from / channels; first < to / channels; first += tile) {
      const std::int64_t end = std::min(first + tile, cells);
      for (std::int64_t c = 0; c < channels; ++c)
        if (cell_of)
          for (std::int64_t row = first; row < end; ++row) move(row, cell_of[row], c);
        else
          for (std::int64_t row = first; row < end; ++row) move(row, row, c);
    }
  });
}

/// Writes coordinate rows one after another.
class CoordinateWriter {
 public:
  explicit CoordinateWriter(Tensor& table) : out_(table.data<float>()) {}

  void add(std::array<float, 3> position, std::array<float, 3> size, std::array<float, 3> reference) {
    for (const auto& part : {position, size, reference})
      for (float v : part) *out_++ = v;
  }

  void add_grid(LatentGrid grid, std::int64_t first_t, const std::vector<std::int32_t>& order = {}) {
    const std::array<float, 3> size{static_cast<float>(grid.t), static_cast<float>(grid.h),
                                    static_cast<float>(grid.w)};
    for (std::int64_t i = 0; i < grid.cells(); ++i) {
      const std::int64_t cell = cell_at(order, i);
      const std::int64_t t = cell / (grid.h * grid.w), h = cell / grid.w % grid.h, w = cell % grid.w;
      add({static_cast<float>(first_t + t), static_cast<float>(h), static_cast<float>(w)}, size, size);
    }
  }

 private:
  float* out_;
};

void write_coordinates(CoordinateWriter& out, const PackedSequence& sequence, const Conditioning& branch) {
  const LatentGrid grid = sequence.grid;
  const std::int64_t audio_rows = sequence.audio_rows;
  out.add_grid(grid, 0, sequence.video_order);
  // Audio runs at 25 latents a second, video at 25/8: eight audio rows span one video latent.
  const std::array<float, 3> audio_size{static_cast<float>(audio_rows), 1, 1};
  const std::array<float, 3> audio_reference{static_cast<float>((audio_rows - 1) / 8 + 1), 1, 1};
  for (std::int64_t i = 0; i < audio_rows; ++i)
    out.add({static_cast<float>(i), 0, 0}, audio_size, audio_reference);
  const std::int64_t length = branch.text.dim(0);
  for (std::int64_t i = 0; i < length; ++i)
    out.add({static_cast<float>(i - length), 0, 0}, {static_cast<float>(length), 1, 1}, {1, 1, 1});
  for (std::size_t k = 0; k < branch.images.size(); ++k) {
    const Tensor& latent = branch.images[k].latent;
    const LatentGrid image{1, latent.dim(-2), latent.dim(-1)};
    const std::array<float, 3> size{1, static_cast<float>(image.h), static_cast<float>(image.w)};
    // Images sit past the clip on the time axis, with a gap, one step apart.
    const std::int64_t t = grid.t + 2 + static_cast<std::int64_t>(k);
    out.add({static_cast<float>(t), -1, -1}, size, size);
    out.add_grid(image, t);
  }
}

}  // namespace

PackedSequence pack(LatentGrid grid, std::int64_t audio_rows, std::vector<Conditioning> branches,
                    std::vector<std::int32_t> video_order) {
  require(grid.t > 0 && grid.h > 0 && grid.w > 0 && audio_rows >= 0 && !branches.empty(),
          "cannot pack a latent grid of {}x{}x{} with {} audio rows", grid.t, grid.h, grid.w, audio_rows);
  require(video_order.empty() || static_cast<std::int64_t>(video_order.size()) == grid.cells(),
          "a video order of {} cells for a grid of {}", video_order.size(), grid.cells());
  PackedSequence sequence{grid, audio_rows, std::move(branches), {}, {}, {}, std::move(video_order)};
  std::int64_t row = 0;
  for (std::size_t b = 0; b < sequence.branches.size(); ++b) {
    const auto add = [&](Modality modality, std::int64_t rows, bool noised) {
      sequence.segments.push_back({static_cast<std::int32_t>(b), modality, row, rows, noised});
      row += rows;
    };
    sequence.first_segments.push_back(sequence.segments.size());
    add(Modality::video, grid.cells(), true);
    add(Modality::audio, audio_rows, true);
    add(Modality::text, sequence.branches[b].text.dim(0), false);
    for (const ReferenceImage& image : sequence.branches[b].images) {
      add(Modality::text, 1, false);
      add(Modality::video, image.latent.dim(-2) * image.latent.dim(-1), false);
    }
  }
  sequence.coordinates = Tensor::empty(DType::f32, {row, 9});
  CoordinateWriter out(sequence.coordinates);
  for (const Conditioning& branch : sequence.branches) write_coordinates(out, sequence, branch);
  return sequence;
}

Tensor rotary_table(const Tensor& coordinates, const Tensor& bands) {
  const std::int64_t rows = coordinates.dim(0);
  const std::int64_t nb = bands.numel();
  Tensor table = Tensor::empty(DType::f32, {rows, 6 * nb});
  const float* band = bands.data<float>();
#pragma omp parallel for
  for (std::int64_t r = 0; r < rows; ++r) {
    const float* c = coordinates.data<float>() + 9 * r;
    float* out = table.data<float>() + 6 * nb * r;
    for (int axis = 0; axis < 3; ++axis) {
      const float size = c[3 + axis], reference = c[6 + axis];
      const float scale = size == 1 && reference == 1 ? 1.0f : (reference - 1) / (size - 1);
      const float centre = axis == 0 ? 0.0f : (size - 1) / 2;
      for (std::int64_t k = 0; k < nb; ++k) {
        const double angle = (c[axis] - centre) * scale * band[k];
        out[axis * nb + k] = static_cast<float>(std::sin(angle));
        out[(3 + axis) * nb + k] = static_cast<float>(std::cos(angle));
      }
    }
  }
  return table;
}

Tensor rotary_bands(std::int64_t count) {
  Tensor bands = Tensor::empty(DType::f32, {count});
  for (std::int64_t k = 0; k < count; ++k)
    bands.data<float>()[k] =
        static_cast<float>(std::pow(10000.0, -static_cast<double>(k) / static_cast<double>(count)));
  return bands;
}

std::vector<float> time_features(float tau, std::int64_t channels) {
  const std::int64_t half = channels / 2;
  std::vector<float> features(static_cast<std::size_t>(channels), 0.0f);
  for (std::int64_t j = 0; j < half; ++j) {
    const double exponent = -std::log(10000.0) * static_cast<double>(j) / static_cast<double>(half);
    const float angle = tau * 1000.0f * static_cast<float>(std::exp(exponent));
    features[static_cast<std::size_t>(j)] = static_cast<float>(std::cos(static_cast<double>(angle)));
    features[static_cast<std::size_t>(half + j)] = static_cast<float>(std::sin(static_cast<double>(angle)));
  }
  return features;
}

Tensor cells_from_latent(const Tensor& latent, const std::vector<std::int32_t>& order) {
  Tensor cells = Tensor::empty(DType::f32, cells_shape(latent));
  cells_from_latent(latent, order, cells);
  return cells;
}

void cells_from_latent(const Tensor& latent, const std::vector<std::int32_t>& order, Tensor& cells) {
  require(cells.shape() == cells_shape(latent) && cells.contiguous(), "a latent {} does not make cells {}",
          to_string(latent.shape()), to_string(cells.shape()));
  const std::int64_t count = cells.dim(0), channels = cells.dim(1);
  const float* in = latent.data<float>();
  float* out = cells.data<float>();
  in_tiles(count, channels, order, [=](std::int64_t row, std::int64_t cell, std::int64_t channel) {
    out[row * channels + channel] = in[channel * count + cell];
  });
}

Tensor latent_from_cells(const Tensor& cells, LatentGrid grid, const std::vector<std::int32_t>& order) {
  Tensor latent = Tensor::empty(DType::f32, {cells.dim(1), grid.t, grid.h, grid.w});
  latent_from_cells(cells, order, latent);
  return latent;
}

void latent_from_cells(const Tensor& cells, const std::vector<std::int32_t>& order, Tensor& latent) {
  require(cells.shape() == cells_shape(latent) && latent.contiguous(), "{} cells do not fill a latent {}",
          to_string(cells.shape()), to_string(latent.shape()));
  const std::int64_t count = cells.dim(0), pitch = cells.pitch();
  const float* in = cells.data<float>();
  float* out = latent.data<float>();
  in_tiles(count, cells.dim(1), order, [=](std::int64_t row, std::int64_t cell, std::int64_t channel) {
    out[channel * count + cell] = in[row * pitch + channel];
  });
}

Shape cells_shape(const Tensor& latent) {
  require(latent.rank() >= 4, "a latent has the axes [C,T,H,W], not {}", to_string(latent.shape()));
  return {latent.dim(-3) * latent.dim(-2) * latent.dim(-1), latent.dim(-4)};
}

}  // namespace magi
