// SPDX-License-Identifier: Apache-2.0
// What the router and the experts share on Hopper: a block of 128 rows of z (two consumer warpgroups of 64)
// against a stream of 32 KB weight blocks, each an image of its shared-memory tile.
#pragma once

#include "ops/cuda/moe.h"
#include "ops/cuda/sm90.cuh"

namespace magi::cuda::moe {

using namespace magi::sm90;

inline constexpr int kDim = 256;            ///< K of the products with z
inline constexpr int kRows = kMoeItemRows;  ///< rows of a work item
inline constexpr int kBlockBytes = 32768;   ///< a weight block
inline constexpr int kChunk = 64;           ///< hidden columns of the experts
inline constexpr int kBlocksPerChunk = 3;   ///< weight blocks: gate and up over two halves of K, down
inline constexpr int kExperts = 256;        ///< a head, in the router
inline constexpr int kTopK = 6;             ///< in the router
inline constexpr int kTerms = 3;            ///< bf16 terms of an element of the router's matrix
inline constexpr int kGateBlocks =
    kTerms * kDim / 64;            ///< 256 experts × 64 of K each: low, middle, high terms
inline constexpr int kStages = 5;  ///< weight blocks in shared memory
inline constexpr int kThreads = 3 * kWarpgroup;
inline constexpr int kZTile = kRows * 128;  ///< bytes of 64 of K of z

inline constexpr int kConsumerWarps = 8;

/// Shared memory of the kernels with bf16 weights; their own parts follow it.
struct Tiles {
  alignas(1024) unsigned char ring[kStages][kBlockBytes];
  alignas(1024) unsigned char z[kDim / 64][kZTile];
  std::uint64_t full[kStages], empty[kStages];  ///< weight blocks
  std::uint64_t z_full[2], z_empty[2];          ///< halves of z, one per consumer warpgroup

  __device__ __forceinline__ void init() {
    for (int i = 0; i < kStages; ++i) {
      barrier_init(&full[i], 1);
      barrier_init(&empty[i], kConsumerWarps);
    }
    for (int i = 0; i < 2; ++i) {
      barrier_init(&z_full[i], 2);
      barrier_init(&z_empty[i], 4);
    }
  }
};

/// A block's life: `init()` by one thread, then `produce(warp, lane)` in the last warpgroup, which needs few
/// registers, and `consume()` in the two others, which get its share.
template <typename Init, typename Produce, typename Consume>
__device__ __forceinline__ void share_roles(const Init& init, const Produce& produce,
                                            const Consume& consume) {
  if (threadIdx.x == 0) {
    init();
    fence_barrier_init();
  }
  __syncthreads();
  if (threadIdx.x >= 2 * kWarpgroup) {
    give_registers<24>();
    produce(threadIdx.x / 32 % 4, threadIdx.x % 32);
  } else {
    take_registers<240>();
    consume();
  }
}

/// `bytes` contiguous bytes into shared memory, completing on `barrier`.
__device__ __forceinline__ void load_bulk(std::uint64_t* barrier, void* to, const void* from,
                                          std::uint32_t bytes) {
  asm volatile(
      "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(
          shared_address(to)),
      "l"(from), "r"(bytes), "r"(shared_address(barrier))
      : "memory");
}

/// 16 bytes, global → shared.
__device__ __forceinline__ void copy16(std::uint32_t to, const void* from) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(to), "l"(from) : "memory");
}
__device__ __forceinline__ void copies_wait() {
  asm volatile("cp.async.wait_all;" ::: "memory");
}

/// A warp's copies are there, for wgmma too; tells `barrier`, once.
__device__ __forceinline__ void copies_announce(std::uint64_t* barrier, int lane) {
  copies_wait();
  fence_async_proxy();
  __syncwarp();
  if (lane == 0) barrier_arrive(barrier);
}

/// One warp puts row `row` of z (512 bytes) into the swizzled tiles; lane l moves piece l.
__device__ __forceinline__ void copy_row(unsigned char (&z)[kDim / 64][kZTile], int row, const void* z_row,
                                         int lane) {
  std::uint32_t to = shared_address(z[lane / 8]) + row * 128 + ((lane % 8) ^ (row % 8)) * 16;
  copy16(to, static_cast<const uint4*>(z_row) + lane);
}

/// Byte offset of 16-byte piece `piece` of row `row` in a tile image.
__host__ __device__ constexpr int swizzled(int row, int piece) {
  return row * 128 + ((piece ^ (row % 8)) * 16);
}

/// 1/x, flushing to zero; relative error 2^-23.
__device__ __forceinline__ float reciprocal_fast(float x) {
  float y;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

/// Column of the result that wgmma column n of the down product holds: the permutation inside each 32 columns
/// gives thread q of a quad the 8 neighbours 8q…8q+7 instead of four separate pairs.
__host__ __device__ constexpr int output_column(int n) {
  return (n & ~31) | ((n & 6) << 2) | ((n >> 2) & 6) | (n & 1);
}

#define MAGI_T10(t) \
  "%" #t "0,%" #t "1,%" #t "2,%" #t "3,%" #t "4,%" #t "5,%" #t "6,%" #t "7,%" #t "8,%" #t "9"
#define MAGI_T128 \
  "{%0,%1,%2,%3,%4,%5,%6,%7,%8,%9," MAGI_T10(1) "," MAGI_T10(2) "," MAGI_T10(3) "," MAGI_T10(4) "," MAGI_T10(5) "," MAGI_T10( \
      6) "," MAGI_T10(7) "," MAGI_T10(8) "," MAGI_T10(9) "," MAGI_T10(10) "," MAGI_T10(11) ",%120,%121,%122,%123,%124,%125,%126,%127}"
#define MAGI_D4(i) "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3])
#define MAGI_D16(i) MAGI_D4(i), MAGI_D4(i + 4), MAGI_D4(i + 8), MAGI_D4(i + 12)
#define MAGI_D64(i) MAGI_D16(i), MAGI_D16(i + 16), MAGI_D16(i + 32), MAGI_D16(i + 48)

/// d[64×256] = A·B (+ d where `add`), both from shared memory, K-major.
__device__ __forceinline__ void wgmma_ss_n256(float (&d)[128], std::uint64_t a, std::uint64_t b, int add) {
  asm volatile(
      "{\n.reg .pred p;\nsetp.ne.b32 p, %130, 0;\n"
      "wgmma.mma_async.sync.aligned.m64n256k16.f32.bf16.bf16 " MAGI_T128 ", %128, %129, p, 1, 1, 0, 0;\n}"
      : MAGI_D64(0), MAGI_D64(64)
      : "l"(a), "l"(b), "r"(add));
}

/// The same with A in registers.
__device__ __forceinline__ void wgmma_rs_n256(float (&d)[128], const std::uint32_t* a, std::uint64_t b,
                                              int add) {
  asm volatile(
      "{\n.reg .pred p;\nsetp.ne.b32 p, %133, 0;\n"
      "wgmma.mma_async.sync.aligned.m64n256k16.f32.bf16.bf16 " MAGI_T128
      ", {%128,%129,%130,%131}, %132, p, 1, 1, 0;\n}"
      : MAGI_D64(0), MAGI_D64(64)
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(add));
}

#undef MAGI_T10
#undef MAGI_T128
#undef MAGI_D4
#undef MAGI_D16
#undef MAGI_D64

}  // namespace magi::cuda::moe
