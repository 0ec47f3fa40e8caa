// SPDX-License-Identifier: Apache-2.0
// Routed experts. Rows are sorted by expert and gathered into row tiles; a tile's result for a row is that of
// the row alone. Results wait in f32 until all choices of a row are there and are then summed in order of
// choice. Four-bit weights are unpacked column tile by column tile as they are needed, into one thread's
// cache.
#include <omp.h>

#include <algorithm>
#include <cstring>

#include "ops/cpu/cpu_ops.h"
#include "ops/cpu/gemm.h"
#include "ops/cpu/rows.h"
#include "ops/cpu/vector_math.h"
#include "ops/nvfp4.h"

namespace magi {
namespace {

constexpr std::int64_t kWaitingFloats = std::int64_t{1} << 25;  // 128 MiB of results that wait for their sum
constexpr std::int64_t kMinPanelRows = 4096;  // enough for full tiles of hundreds of experts

/// One tile's rows: entries [first, first + rows) of the sorted list, all for one expert.
struct ExpertTile {
  std::int64_t expert, first, rows;
};

/// (row, choice) pairs of one head and one panel of rows, by expert; within an expert in order of rows.
struct SortedChoices {
  std::vector<std::int64_t> choices;  ///< row in the panel · top_k + choice
  std::vector<ExpertTile> tiles;
};

SortedChoices sort_choices(const Routing& routing, std::int64_t head, std::int64_t first_row,
                           std::int64_t rows, std::int64_t experts) {
  const std::int64_t heads = routing.index.dim(1), top_k = routing.index.dim(2);
  const std::int32_t* index = routing.index.data<std::int32_t>();
  const auto expert_of = [&](std::int64_t choice) {
    return index[((first_row + choice / top_k) * heads + head) * top_k + choice % top_k];
  };
  std::vector<std::int64_t> starts(static_cast<std::size_t>(experts) + 1, 0);
  for (std::int64_t i = 0; i < rows * top_k; ++i) {
    const std::int32_t expert = expert_of(i);
    require(expert >= 0 && expert < experts, "experts: row {} chose expert {} of {}", first_row + i / top_k,
            expert, experts);
    ++starts[static_cast<std::size_t>(expert) + 1];
  }
  for (std::size_t e = 0; e < static_cast<std::size_t>(experts); ++e) starts[e + 1] += starts[e];

  SortedChoices sorted;
  for (std::int64_t e = 0; e < experts; ++e) {
    const std::int64_t end = starts[static_cast<std::size_t>(e) + 1];
    for (std::int64_t first = starts[static_cast<std::size_t>(e)]; first < end; first += kTileRows) {
      sorted.tiles.push_back({e, first, std::min(kTileRows, end - first)});
    }
  }
  sorted.choices.resize(static_cast<std::size_t>(rows * top_k));
  for (std::int64_t i = 0; i < rows * top_k; ++i) {
    sorted.choices[static_cast<std::size_t>(starts[static_cast<std::size_t>(expert_of(i))]++)] = i;
  }
  return sorted;
}

/// swiglu7 of two products in f32 → the work dtype (`round`: f32 that stands for bf16).
template <typename T>
MAGI2_INLINE void activate(const float* gate, const float* up, std::int64_t columns, bool round, T* y) {
  for (std::int64_t j = 0; j < columns; j += kLanes) {
    const Floats v = swiglu7(load(gate + j), load(up + j));
    if (round) {
      bf16 rounded[kLanes];
      store(rounded, v);
      store(y + j, load(rounded));
    } else {
      store(y + j, v);
    }
  }
}
MAGI2_SIMD void activate_f32(const float* gate, const float* up, std::int64_t columns, bool round, float* y) {
  activate(gate, up, columns, round, y);
}
MAGI2_SIMD void activate_bf16(const float* gate, const float* up, std::int64_t columns, bf16* y) {
  activate(gate, up, columns, false, y);
}

/// y [dim] = Σ weight[j] · results[j]
template <typename T>
MAGI2_INLINE void combine(const float* results, const float* weights, std::int64_t top_k, std::int64_t dim,
                          T* y) {
  for (std::int64_t c = 0; c < dim; c += kLanes) {
    const std::int64_t count = std::min(kLanes, dim - c);
    Floats total{};
    for (std::int64_t j = 0; j < top_k; ++j) {
      const float* result = results + j * dim + c;
      total += weights[j] * (count == kLanes ? load(result) : load(result, count));
    }
    if (count == kLanes) {
      store(y + c, total);
    } else {
      store(y + c, total, count);
    }
  }
}
MAGI2_SIMD void combine_f32(const float* r, const float* w, std::int64_t k, std::int64_t dim, float* y) {
  combine(r, w, k, dim, y);
}
MAGI2_SIMD void combine_bf16(const float* r, const float* w, std::int64_t k, std::int64_t dim, bf16* y) {
  combine(r, w, k, dim, y);
}

class Experts {
 public:
  Experts(const Tensor& z, const Routing& routing, const ExpertWeight& w, std::span<const Tensor> y)
      : z_(z),
        routing_(routing),
        w_(w),
        y_(y),
        top_k_(routing.index.dim(2)),
        in_(w.dtype, w.dim, w.hidden),
        out_(w.dtype, w.hidden, w.dim) {}

  void run() {
    const std::int64_t rows = z_.dim(0);
    if (rows == 0) return;
    const std::int64_t floats_per_row = std::max<std::int64_t>(1, top_k_ * w_.dim);
    const std::int64_t panel = std::min(rows, std::max(kMinPanelRows, kWaitingFloats / floats_per_row));
    const std::int64_t batch =
        std::clamp<std::int64_t>(kWaitingFloats / (floats_per_row * panel), 1, w_.heads);
    results_ = Tensor::empty(DType::f32, {batch, panel * floats_per_row});
    for (std::int64_t first_row = 0; first_row < rows; first_row += panel) {
      for (std::int64_t first_head = 0; first_head < w_.heads; first_head += batch) {
        run_panel(first_row, std::min(panel, rows - first_row), first_head,
                  std::min(batch, w_.heads - first_head));
      }
    }
  }

 private:
  struct Thread {
    Gemm::Worker multiply_in, multiply_out;
    Tensor rows, gate, up, hidden, result;
    Tensor columns, tile;  ///< NVFP4: a column tile's weights as numbers, and in the kernel's layout

    explicit Thread(const Experts& e)
        : multiply_in(*e.in_.gemm),
          multiply_out(*e.out_.gemm),
          rows(Tensor::empty(e.in_.gemm->input(), {kTileRows, e.in_.gemm->k()})),
          gate(Tensor::empty(DType::f32, {kTileRows, e.in_.gemm->n()})),
          up(Tensor::empty(DType::f32, {kTileRows, e.in_.gemm->n()})),
          hidden(Tensor::zeros(e.out_.gemm->input(), {kTileRows, e.out_.gemm->k()})),
          result(Tensor::empty(DType::f32, {kTileRows, e.out_.gemm->n()})) {
      if (!e.w_.nvfp4.defined()) return;
      const Gemm &in = *e.in_.gemm, &out = *e.out_.gemm;
      columns = Tensor::empty(
          DType::u8, {std::max(in.n() * in.k() * static_cast<std::int64_t>(size_of(in.input())),
                               out.n() * out.k() * static_cast<std::int64_t>(size_of(out.input())))});
      tile = Tensor::empty(DType::u8,
                           {static_cast<std::int64_t>(std::max(in.packed_bytes(), out.packed_bytes()))});
    }
  };

  void run_panel(std::int64_t first_row, std::int64_t rows, std::int64_t first_head, std::int64_t heads) {
    std::vector<SortedChoices> sorted;
    std::vector<std::pair<std::int64_t, std::int64_t>> tiles;  // head of the batch, its tile
    for (std::int64_t h = 0; h < heads; ++h) {
      sorted.push_back(sort_choices(routing_, first_head + h, first_row, rows, w_.experts));
      for (std::size_t t = 0; t < sorted.back().tiles.size(); ++t)
        tiles.emplace_back(h, static_cast<std::int64_t>(t));
    }
    const std::int64_t tile_count = static_cast<std::int64_t>(tiles.size());
#pragma omp parallel
    {
      Thread thread(*this);
#pragma omp for schedule(dynamic)
      for (std::int64_t i = 0; i < tile_count; ++i) {
        const auto [h, t] = tiles[static_cast<std::size_t>(i)];
        const SortedChoices& s = sorted[static_cast<std::size_t>(h)];
        run_tile(s.tiles[static_cast<std::size_t>(t)], s, first_row, first_head + h, h, thread);
      }
#pragma omp for schedule(static)
      for (std::int64_t r = 0; r < rows; ++r) {
        for (std::int64_t h = 0; h < heads; ++h)
          combine_row(first_row + r, first_head + h, results(h, r * top_k_));
      }
    }
  }

  float* results(std::int64_t batch_head, std::int64_t choice) {
    return results_.data<float>() + batch_head * results_.dim(1) + choice * w_.dim;
  }

  void run_tile(const ExpertTile& tile, const SortedChoices& sorted, std::int64_t first_row,
                std::int64_t head, std::int64_t batch_head, Thread& thread) {
    const std::int64_t* choices = sorted.choices.data() + tile.first;
    const std::size_t matrix = static_cast<std::size_t>(head * w_.experts + tile.expert);
    const std::size_t z_size = size_of(z_.dtype()), row_size = size_of(thread.rows.dtype());
    for (std::int64_t r = 0; r < tile.rows; ++r) {
      const std::int64_t row = first_row + choices[r] / top_k_;
      copy_block(
          static_cast<const std::byte*>(z_.raw()) +
              static_cast<std::size_t>(row * z_.pitch() + head * w_.dim) * z_size,
          z_.dtype(), w_.dim, 1, w_.dim,
          static_cast<std::byte*>(thread.rows.raw()) + static_cast<std::size_t>(r * in_.gemm->k()) * row_size,
          thread.rows.dtype(), 1, in_.gemm->k());
    }
    for (std::int64_t column = 0; column < in_.count; ++column) {
      thread.multiply_in(thread.rows.raw(), weights(ExpertMatrix::gate, matrix, column, thread),
                         thread.gate.data<float>(), tile.rows);
      thread.multiply_in(thread.rows.raw(), weights(ExpertMatrix::up, matrix, column, thread),
                         thread.up.data<float>(), tile.rows);
      activate_tile(column * in_.gemm->n(), tile.rows, thread);
    }
    for (std::int64_t column = 0; column < out_.count; ++column) {
      thread.multiply_out(thread.hidden.raw(), weights(ExpertMatrix::down, matrix, column, thread),
                          thread.result.data<float>(), tile.rows);
      for (std::int64_t r = 0; r < tile.rows; ++r) {
        std::copy_n(thread.result.data<float>() + r * out_.gemm->n(), out_.width(column),
                    results(batch_head, choices[r]) + column * out_.gemm->n());
      }
    }
  }

  /// Column tile `column` of expert `matrix` in the kernel's layout.
  const void* weights(ExpertMatrix m, std::size_t matrix, std::int64_t column, Thread& thread) const {
    const ColumnTiles& tiles = m == ExpertMatrix::down ? out_ : in_;
    if (!w_.nvfp4.defined()) {
      const Tensor& packed = m == ExpertMatrix::gate ? w_.gate : m == ExpertMatrix::up ? w_.up : w_.down;
      return tiles.tile(static_cast<const std::byte*>(packed.raw()) + matrix * tiles.bytes(), column);
    }
    const Nvfp4Layout layout = nvfp4_layout(w_);
    const auto* expert = static_cast<const std::byte*>(w_.nvfp4.raw()) +
                         matrix * static_cast<std::size_t>(layout.expert_bytes());
    const Gemm& gemm = *tiles.gemm;
    const std::int64_t first = column * gemm.n(), count = tiles.width(column),
                       padding = (gemm.n() - count) * gemm.k();
    const auto unpack = [&](auto* to) {
      dequantize_columns(expert, layout, m, first, count, to, gemm.k());
      std::memset(static_cast<void*>(to + count * gemm.k()), 0,
                  static_cast<std::size_t>(padding) * sizeof *to);
    };
    void* columns = thread.columns.raw();
    if (gemm.input() == DType::f32)
      unpack(static_cast<float*>(columns));
    else
      unpack(static_cast<bf16*>(columns));
    gemm.pack(columns, true, thread.tile.raw());
    return thread.tile.raw();
  }

  /// Columns from `first` on; padding gives zeros, since its products are zero.
  void activate_tile(std::int64_t first, std::int64_t rows, Thread& thread) {
    const std::int64_t n = in_.gemm->n(), pitch = thread.hidden.pitch();
    const std::int64_t columns = std::min(n, pitch - first);
    for (std::int64_t r = 0; r < rows; ++r) {
      const float* gate = thread.gate.data<float>() + r * n;
      const float* up = thread.up.data<float>() + r * n;
      if (thread.hidden.dtype() == DType::f32) {
        activate_f32(gate, up, columns, w_.dtype == DType::bf16,
                     thread.hidden.data<float>() + r * pitch + first);
      } else {
        activate_bf16(gate, up, columns, thread.hidden.data<bf16>() + r * pitch + first);
      }
    }
  }

  void combine_row(std::int64_t row, std::int64_t head, const float* results) {
    const float* weights = routing_.weight.data<float>() + (row * w_.heads + head) * top_k_;
    const std::int64_t column = head * w_.dim;
    if (z_.dtype() == DType::f32) {
      combine_f32(results, weights, top_k_, w_.dim, element_of<float>(y_, row, column));
    } else {
      combine_bf16(results, weights, top_k_, w_.dim, element_of<bf16>(y_, row, column));
    }
  }

  const Tensor& z_;
  const Routing& routing_;
  const ExpertWeight& w_;
  std::span<const Tensor> y_;
  std::int64_t top_k_;
  ColumnTiles in_, out_;
  Tensor results_;  ///< [heads of the batch, panel rows · top_k · dim] f32
};

}  // namespace

void CpuOps::do_experts(const Tensor& z, const Routing& routing, const ExpertWeight& w,
                        std::span<const Tensor> y) {
  Experts(z, routing, w, y).run();
}

}  // namespace magi
