// SPDX-License-Identifier: Apache-2.0
#include "ops/cpu/gemm.h"

#include <omp.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <mutex>
#include <tuple>

#include "core/tensor.h"
#include "ops/cpu/vector_math.h"

namespace magi {
namespace {

/// Numbers in [−1, 1) with all mantissa bits in use, so that another order of summation shows.
void fill(Tensor& t, std::uint32_t seed) {
  for (float& v : t.values<float>()) {
    seed = seed * 1664525u + 1013904223u;
    v = static_cast<float>(seed >> 8) * 0x1p-23f - 1.0f;
  }
}

/// oneDNN bakes the number of threads into what it creates; our kernels run inside one thread of our own
/// loops.
class OneThread {
 public:
  OneThread() : before_(omp_get_max_threads()) { omp_set_num_threads(1); }
  ~OneThread() { omp_set_num_threads(before_); }
  OneThread(const OneThread&) = delete;
  OneThread& operator=(const OneThread&) = delete;

 private:
  int before_;
};

enum class RowCheck { fails, full_tiles, short_tiles };

/// Do equal rows give equal bits at every place of a full tile, and of shorter ones? Some kernels treat the
/// last rows of a tile in another order.
RowCheck check_rows(GemmKernel& kernel, DType dtype, std::int64_t k, std::int64_t n) {
  Tensor b = Tensor::empty(DType::f32, {k, n});
  Tensor row = Tensor::empty(DType::f32, {1, k});
  fill(b, 1);
  fill(row, 2);
  Tensor a = Tensor::empty(dtype, {kTileRows, k});
  const Tensor typed_row = row.to(dtype);
  for (std::int64_t r = 0; r < kTileRows; ++r)
    std::memcpy(a.rows(r, 1).raw(), typed_row.raw(), typed_row.bytes());
  Tensor packed = Tensor::empty(DType::u8, {static_cast<std::int64_t>(kernel.packed_bytes())});
  kernel.pack(b.to(dtype).raw(), false, packed.raw());

  Tensor c = Tensor::empty(DType::f32, {kTileRows, n});
  Tensor first = Tensor::empty(DType::f32, {n});
  const auto rows_agree = [&](std::int64_t rows) {
    kernel.worker()->run(a.raw(), packed.raw(), c.data<float>(), rows);
    if (rows == kTileRows) std::memcpy(first.raw(), c.raw(), first.bytes());
    for (std::int64_t r = 0; r < rows; ++r) {
      if (std::memcmp(c.rows(r, 1).raw(), first.raw(), first.bytes()) != 0) return false;
    }
    return true;
  };
  if (!rows_agree(kTileRows)) return RowCheck::fails;
  kernel.use_short_tiles(true);
  for (std::int64_t rows = 16; rows < kTileRows; rows += 16) {
    if (rows_agree(rows)) continue;
    kernel.use_short_tiles(false);
    return RowCheck::full_tiles;
  }
  return RowCheck::short_tiles;
}

MAGI2_SIMD void widen(const bf16* from, float* to, std::int64_t count) {
  std::int64_t i = 0;
  for (; i + kLanes <= count; i += kLanes) store(to + i, load(from + i));
  for (; i < count; ++i) to[i] = static_cast<float>(from[i]);
}

MAGI2_SIMD void narrow(const float* from, bf16* to, std::int64_t count) {
  std::int64_t i = 0;
  for (; i + kLanes <= count; i += kLanes) store(to + i, load(from + i));
  for (; i < count; ++i) to[i] = bf16(from[i]);
}

}  // namespace

Gemm::Gemm(DType dtype, std::int64_t k, std::int64_t n) : input_(dtype), k_(k), n_(n) {
  const OneThread guard;
  for (const DType input : {dtype, DType::f32}) {
    input_ = input;
    kernel_ = make_onednn_kernel(input, k, n);
    if (kernel_ && check_rows(*kernel_, input, k, n) == RowCheck::fails) kernel_.reset();
    if (kernel_) break;
  }
  if (!kernel_) {
    input_ = DType::f32;
    kernel_ = make_plain_kernel(k, n);
  }
  packed_bytes_ =
      static_cast<std::size_t>(round_up(static_cast<std::int64_t>(kernel_->packed_bytes()), kTileAlign));
}

const Gemm& Gemm::of(DType dtype, std::int64_t k, std::int64_t n) {
  static std::mutex mutex;
  static std::map<std::tuple<DType, std::int64_t, std::int64_t>, Gemm> cache;
  const std::lock_guard lock(mutex);
  return cache.try_emplace({dtype, k, n}, dtype, k, n).first->second;
}

namespace {

std::int64_t padded_depth(std::int64_t depth) {
  return std::max(round_up(depth, kDepthStep), kDepthStep);
}

/// Wide enough for a kernel call to be worth its cost, narrow enough for a tile of weights to stay in the
/// cache.
std::int64_t tile_columns(std::int64_t k, std::int64_t columns) {
  const std::int64_t wide = k >= 1024 ? 64 : k >= 512 ? 128 : 256;
  return std::clamp(round_up(columns, kDepthStep), kDepthStep, wide);
}

}  // namespace

ColumnTiles::ColumnTiles(DType dtype, std::int64_t depth, std::int64_t columns)
    : depth(depth), columns(columns) {
  const std::int64_t k = padded_depth(depth);
  gemm = &Gemm::of(dtype, k, tile_columns(k, columns));
  count = (columns + gemm->n() - 1) / gemm->n();
}

std::size_t ColumnTiles::planned_bytes(DType dtype, std::int64_t depth, std::int64_t columns) {
  const std::int64_t k = padded_depth(depth), n = tile_columns(k, columns);
  const DType input = dtype == DType::f32 ? dtype : Gemm::of(dtype, kDepthStep, kDepthStep).input();
  return static_cast<std::size_t>(round_up(columns, n) * k) * size_of(input);
}

void ColumnTiles::pack_tile(const void* b, DType dtype, bool transposed, std::int64_t index,
                            void* packed) const {
  const std::int64_t k = gemm->k(), n = gemm->n(), first = index * n;
  const std::size_t skip = static_cast<std::size_t>(transposed ? first * depth : first) * size_of(dtype);
  Tensor block = Tensor::empty(gemm->input(), {k * n});
  const void* from = static_cast<const std::byte*>(b) + skip;
  if (transposed) {
    copy_block(from, dtype, depth, width(index), depth, block.raw(), gemm->input(), n, k);
  } else {
    copy_block(from, dtype, columns, depth, width(index), block.raw(), gemm->input(), k, n);
  }
  gemm->pack(block.raw(), transposed, packed);
}

void copy_block(const void* from, DType from_dtype, std::int64_t from_pitch, std::int64_t rows,
                std::int64_t columns, void* to, DType to_dtype, std::int64_t padded_rows,
                std::int64_t padded_columns) {
  const std::size_t from_size = size_of(from_dtype), to_size = size_of(to_dtype);
  for (std::int64_t r = 0; r < rows; ++r) {
    const void* in =
        static_cast<const std::byte*>(from) + static_cast<std::size_t>(r * from_pitch) * from_size;
    std::byte* out = static_cast<std::byte*>(to) + static_cast<std::size_t>(r * padded_columns) * to_size;
    if (from_dtype == to_dtype) {
      std::memcpy(out, in, static_cast<std::size_t>(columns) * to_size);
    } else if (to_dtype == DType::f32) {
      widen(static_cast<const bf16*>(in), reinterpret_cast<float*>(out), columns);
    } else {
      narrow(static_cast<const float*>(in), reinterpret_cast<bf16*>(out), columns);
    }
    std::memset(out + static_cast<std::size_t>(columns) * to_size, 0,
                static_cast<std::size_t>(padded_columns - columns) * to_size);
  }
  std::memset(static_cast<std::byte*>(to) + static_cast<std::size_t>(rows * padded_columns) * to_size, 0,
              static_cast<std::size_t>((padded_rows - rows) * padded_columns) * to_size);
}

}  // namespace magi
