// SPDX-License-Identifier: Apache-2.0
#include <omp.h>

#include <algorithm>

#include "ops/cpu/cpu_ops.h"
#include "ops/cpu/gemm.h"
#include "ops/cpu/vector_math.h"

namespace magi {
namespace {

/// Row tile of one weight group, and where its input lies in the kernel's layout.
struct RowTile {
  std::int64_t first, rows;
  int group;
};

/// Tiles do not cross from one group to another.
std::vector<RowTile> row_tiles(const Segments& segments, std::int64_t rows, int groups) {
  std::vector<RowTile> runs;  // neighbouring segments of one group together
  if (groups == 1) {
    runs.push_back({0, rows, 0});
  } else {
    for (const Segment& s : segments) {
      const int group = static_cast<int>(s.modality);
      if (!runs.empty() && runs.back().group == group) {
        runs.back().rows += s.rows;
      } else {
        runs.push_back({s.first, s.rows, group});
      }
    }
  }
  std::vector<RowTile> tiles;
  for (const RowTile& run : runs) {
    for (std::int64_t r = 0; r < run.rows; r += kTileRows) {
      tiles.push_back({run.first + r, std::min(kTileRows, run.rows - r), run.group});
    }
  }
  return tiles;
}

template <typename T>
MAGI2_INLINE void finish_plain(const float* c, std::int64_t columns, const float* bias, bool add, T* y) {
  for (std::int64_t j = 0; j < columns; j += kLanes) {
    const std::int64_t count = std::min(kLanes, columns - j);
    Floats v = load(c + j);
    if (bias) v += count == kLanes ? load(bias + j) : load(bias + j, count);
    if (add) {
      T product[kLanes];
      store(product, v);
      v = load(product) + (count == kLanes ? load(y + j) : load(y + j, count));
    }
    if (count == kLanes) {
      store(y + j, v);
    } else {
      store(y + j, v, count);
    }
  }
}

/// Interleaved columns (even gate, odd linear) → half as many.
template <typename T>
MAGI2_INLINE void finish_gated(const float* c, std::int64_t columns, const float* bias, Epilogue epilogue,
                               bool round_first, T* y) {
  for (std::int64_t j = 0; j < columns; j += 2 * kLanes) {
    float gate[kLanes] = {}, linear[kLanes] = {};
    const std::int64_t count = std::min(kLanes, (columns - j) / 2);
    for (std::int64_t i = 0; i < count; ++i) {
      gate[i] = c[j + 2 * i];
      linear[i] = c[j + 2 * i + 1];
      if (bias) {
        gate[i] += bias[j + 2 * i];
        linear[i] += bias[j + 2 * i + 1];
      }
    }
    Floats a = load(gate), b = load(linear);
    if (round_first) {
      bf16 rounded_a[kLanes], rounded_b[kLanes];
      store(rounded_a, a);
      store(rounded_b, b);
      a = load(rounded_a);
      b = load(rounded_b);
    }
    const Floats result = epilogue == Epilogue::swiglu7 ? swiglu7(a, b) : silu(a) * b;
    if (count == kLanes) {
      store(y + j / 2, result);
    } else {
      store(y + j / 2, result, count);
    }
  }
}

/// What follows the product of one tile.
struct Finish {
  Epilogue epilogue;
  bool round_first;   ///< a gated epilogue starts from the product rounded to bf16
  const float* bias;  ///< of the tile's first column, or null
  std::int64_t rows, columns;
  const float* c;
  std::int64_t c_pitch, y_pitch;
};

template <typename T>
MAGI2_INLINE void finish(const Finish& f, T* y) {
  for (std::int64_t r = 0; r < f.rows; ++r) {
    const float* c = f.c + r * f.c_pitch;
    if (!is_gated(f.epilogue)) {
      finish_plain(c, f.columns, f.bias, f.epilogue == Epilogue::add, y + r * f.y_pitch);
    } else {
      finish_gated(c, f.columns, f.bias, f.epilogue, f.round_first, y + r * f.y_pitch);
    }
  }
}
MAGI2_SIMD void finish_f32(const Finish& f, float* y) {
  finish(f, y);
}
MAGI2_SIMD void finish_bf16(const Finish& f, bf16* y) {
  finish(f, y);
}

void finish(const Finish& f, Tensor& y, std::int64_t row, std::int64_t column) {
  if (y.dtype() == DType::f32) {
    finish_f32(f, y.data<float>() + row * y.pitch() + column);
  } else {
    finish_bf16(f, y.data<bf16>() + row * y.pitch() + column);
  }
}

const void* address(const Tensor& t, std::int64_t row) {
  return static_cast<const std::byte*>(t.raw()) +
         static_cast<std::size_t>(row * t.pitch()) * size_of(t.dtype());
}

}  // namespace

void CpuOps::do_linear(const Tensor& x, const LinearWeight& w, const Segments& segments, Epilogue epilogue,
                       Tensor& y) {
  const ColumnTiles columns(w.dtype, w.in, w.out);
  const Gemm& gemm = *columns.gemm;
  const std::vector<RowTile> tiles = row_tiles(segments, x.dim(0), w.groups);
  const std::int64_t tile_count = static_cast<std::int64_t>(tiles.size());
  if (tile_count == 0) return;

  // Rows go through in panels: copied inputs stay small, and a column tile serves a whole panel from the
  // cache.
  const std::int64_t panel =
      std::min(tile_count, std::max<std::int64_t>(16, 4 * omp_get_max_threads() / columns.count + 1));
  const bool in_place = x.dtype() == gemm.input() && w.in == gemm.k() && x.pitch() == gemm.k();
  const auto needs_copy = [&](const RowTile& t) { return !in_place || t.rows < kTileRows; };
  const bool any_copy = std::any_of(tiles.begin(), tiles.end(), needs_copy);
  const Tensor copies = Tensor::empty(gemm.input(), {any_copy ? panel : 0, kTileRows * gemm.k()});

#pragma omp parallel
  {
    Gemm::Worker multiply(gemm);
    const Tensor c = Tensor::empty(DType::f32, {kTileRows, gemm.n()});
    float* product = const_cast<float*>(c.data<float>());
    for (std::int64_t begin = 0; begin < tile_count; begin += panel) {
      const std::int64_t count = std::min(panel, tile_count - begin);
      if (any_copy) {
#pragma omp for schedule(dynamic)
        for (std::int64_t i = 0; i < count; ++i) {
          const RowTile& t = tiles[static_cast<std::size_t>(begin + i)];
          if (!needs_copy(t)) continue;
          copy_block(address(x, t.first), x.dtype(), x.pitch(), t.rows, w.in,
                     const_cast<void*>(address(copies, i)), gemm.input(), kTileRows, gemm.k());
        }
      }
#pragma omp for schedule(dynamic)
      for (std::int64_t i = 0; i < count * columns.count; ++i) {
        const std::int64_t column = i / count;
        const RowTile& t = tiles[static_cast<std::size_t>(begin + i % count)];
        const void* a = needs_copy(t) ? address(copies, i % count) : address(x, t.first);
        multiply(a, columns.tile(address(w.data, t.group), column), product, t.rows);
        const std::int64_t first = column * gemm.n();
        const float* bias = w.bias.defined() ? w.bias.data<float>() + t.group * w.out + first : nullptr;
        finish({epilogue, w.dtype == DType::bf16, bias, t.rows, columns.width(column), product, gemm.n(),
                y.pitch()},
               y, t.first, is_gated(epilogue) ? first / 2 : first);
      }
    }
  }
}

}  // namespace magi
