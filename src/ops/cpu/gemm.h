// SPDX-License-Identifier: Apache-2.0
// Matrix products whose rows do not know of each other. A product is cut into tiles of at most 64 rows and a
// fixed number of columns; a tile is one single-threaded kernel call that sums along the whole depth in one
// fixed order. Threads share out tiles. So a row's bits depend on that row (and the weights) alone.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

#include "core/dtype.h"

namespace magi {

inline constexpr std::int64_t kTileRows = 64;
inline constexpr std::int64_t kDepthStep = 32;  ///< depth and columns of a tile are multiples of this
inline constexpr std::size_t kTileAlign = 64;   ///< alignment of all memory given to a kernel

constexpr std::int64_t round_up(std::int64_t n, std::int64_t multiple) {
  return (n + multiple - 1) / multiple * multiple;
}

/// What computes a tile: a library's kernel or plain C++. Used through Gemm.
class GemmKernel {
 public:
  /// State of one thread.
  class Worker {
   public:
    virtual ~Worker() = default;
    virtual void run(const void* a, const void* packed, float* c, std::int64_t rows) = 0;
  };

  virtual ~GemmKernel() = default;
  virtual std::size_t packed_bytes() const = 0;
  virtual void pack(const void* b, bool transposed, void* packed) const = 0;
  virtual std::unique_ptr<Worker> worker() const = 0;
  /// Tiles of at most so many rows may be cheaper than 64; off until checked to give the same bits.
  virtual void use_short_tiles(bool on) = 0;
};

/// A tile's product, C [rows, n] f32 = A [rows, k] · B [k, n], with k and n multiples of kDepthStep.
class Gemm {
 public:
  /// From a cache for the life of the process. Call it outside of parallel regions.
  static const Gemm& of(DType dtype, std::int64_t k, std::int64_t n);

  /// Type of A and B in memory: the dtype asked for, or f32 where this processor has no good bf16 product.
  DType input() const { return input_; }
  std::int64_t k() const { return k_; }
  std::int64_t n() const { return n_; }
  std::size_t packed_bytes() const { return packed_bytes_; }

  /// B, row-major [k, n] or, transposed, [n, k], to the kernel's layout.
  void pack(const void* b, bool transposed, void* packed) const { kernel_->pack(b, transposed, packed); }

  /// One thread's handle; make it inside the parallel region, once, and use it for many tiles.
  class Worker {
   public:
    explicit Worker(const Gemm& gemm) : worker_(gemm.kernel_->worker()) {}
    /// a: [kTileRows, k] readable, of which `rows` count; c: [kTileRows, n], of which `rows` are valid
    /// afterwards.
    void operator()(const void* a, const void* packed, float* c, std::int64_t rows) {
      worker_->run(a, packed, c, rows);
    }

   private:
    std::unique_ptr<GemmKernel::Worker> worker_;
  };

  Gemm(DType dtype, std::int64_t k, std::int64_t n);

 private:
  std::unique_ptr<GemmKernel> kernel_;
  DType input_;
  std::int64_t k_, n_;
  std::size_t packed_bytes_;
};

/// A matrix B [depth, columns] cut into equal column tiles, the last one padded with zeros.
struct ColumnTiles {
  const Gemm* gemm;
  std::int64_t depth, columns, count;

  ColumnTiles(DType dtype, std::int64_t depth, std::int64_t columns);
  std::size_t bytes() const { return static_cast<std::size_t>(count) * gemm->packed_bytes(); }
  /// bytes() of such tiles, as kernels without padding of their own have it; makes at most one small kernel.
  static std::size_t planned_bytes(DType dtype, std::int64_t depth, std::int64_t columns);
  const void* tile(const void* packed, std::int64_t index) const {
    return static_cast<const std::byte*>(packed) + static_cast<std::size_t>(index) * gemm->packed_bytes();
  }
  /// Columns of tile `index` that are not padding.
  std::int64_t width(std::int64_t index) const {
    return index + 1 < count ? gemm->n() : columns - index * gemm->n();
  }
  /// Packs tile `index` from f32 or bf16 memory: B row-major or, transposed, [columns, depth].
  void pack_tile(const void* b, DType dtype, bool transposed, std::int64_t index, void* packed) const;
};

/// Copies a [rows, columns] block to [padded_rows, padded_columns] contiguous, converting between f32 and
/// bf16 and filling up with zeros.
void copy_block(const void* from, DType from_dtype, std::int64_t from_pitch, std::int64_t rows,
                std::int64_t columns, void* to, DType to_dtype, std::int64_t padded_rows,
                std::int64_t padded_columns);

std::unique_ptr<GemmKernel> make_plain_kernel(std::int64_t k, std::int64_t n);
/// Null where the library has no optimised kernel for this type on this processor.
std::unique_ptr<GemmKernel> make_onednn_kernel(DType dtype, std::int64_t k, std::int64_t n);

}  // namespace magi
