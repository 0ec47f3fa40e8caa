// SPDX-License-Identifier: Apache-2.0
// Thin wrappers over the Hopper instructions that the tensor-core kernels use: mbarrier, bulk tensor copies
// (TMA), wgmma, named barriers, register reallocation. Names follow the PTX ISA, sections 9.7.13
// (mbarrier), 9.7.9 (cp.async.bulk), 9.7.15 (wgmma). Only for code compiled for sm_90a: guard kernel bodies
// with MAGI_SM90A.
#pragma once

#include <cuda.h>
#include <cuda_bf16.h>

#include <cstdint>

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
#define MAGI_SM90A 1
#endif

namespace magi::sm90 {

inline constexpr int kWarpgroup = 128;  ///< threads

__device__ __forceinline__ std::uint32_t shared_address(const void* p) {
  return static_cast<std::uint32_t>(__cvta_generic_to_shared(p));
}

// ---------------------------------------------------------------- mbarrier

/// A place in a ring of kStages buffers, and the parity that its barriers are waited for with.
template <int kStages>
struct Ring {
  int stage = 0;
  std::uint32_t parity = 0;
  __device__ __forceinline__ void next() {
    if (++stage == kStages) {
      stage = 0;
      parity ^= 1;
    }
  }
};

__device__ __forceinline__ void barrier_init(std::uint64_t* barrier, std::uint32_t arrivals) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(shared_address(barrier)), "r"(arrivals)
               : "memory");
}

/// Makes initialised barriers visible to the copy engine.
__device__ __forceinline__ void fence_barrier_init() {
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}

__device__ __forceinline__ void barrier_arrive(std::uint64_t* barrier) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(shared_address(barrier)) : "memory");
}

/// Arrives once and announces `bytes` that copies will bring.
__device__ __forceinline__ void barrier_expect(std::uint64_t* barrier, std::uint32_t bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(shared_address(barrier)),
               "r"(bytes)
               : "memory");
}

/// Waits until the phase of this parity is complete.
__device__ __forceinline__ void barrier_wait(const std::uint64_t* barrier, std::uint32_t parity) {
  asm volatile(
      "{\n.reg .pred done;\n"
      "WAIT:\n"
      "mbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n"
      "@done bra DONE;\n"
      "bra WAIT;\n"
      "DONE:\n}" ::"r"(shared_address(barrier)),
      "r"(parity)
      : "memory");
}

// ---------------------------------------------------------------- named barriers (0 is __syncthreads)

__device__ __forceinline__ void named_sync(int id, int threads) {
  asm volatile("bar.sync %0, %1;" ::"r"(id), "r"(threads) : "memory");
}
__device__ __forceinline__ void named_arrive(int id, int threads) {
  asm volatile("bar.arrive %0, %1;" ::"r"(id), "r"(threads) : "memory");
}

// ---------------------------------------------------------------- registers

template <int kRegisters>
__device__ __forceinline__ void take_registers() {
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(kRegisters));
}
template <int kRegisters>
__device__ __forceinline__ void give_registers() {
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(kRegisters));
}

// ---------------------------------------------------------------- bulk tensor copies, global → shared

/// One box of a 2-D tensor map at (column, row) into this block's shared memory.
__device__ __forceinline__ void load_box(const CUtensorMap* map, std::uint64_t* barrier, void* to, int column,
                                         int row) {
  asm volatile(
      "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%3, %4}], "
      "[%2];" ::"r"(shared_address(to)),
      "l"(map), "r"(shared_address(barrier)), "r"(column), "r"(row)
      : "memory");
}

/// Orders this thread's ordinary stores to shared memory before later reads by wgmma or the copy engine.
__device__ __forceinline__ void fence_async_proxy() {
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}

// ---------------------------------------------------------------- wgmma

/// Shared-memory operand of wgmma: tiles of 128-byte rows, swizzled by 128 bytes, as TMA writes them; base
/// address a multiple of 1024 (plus the step inside a row). K-major (rows are M or N, 64 bf16 of K a row):
/// next 8 rows 1024 bytes on; a step of 16 in K is 32 bytes. Where a tile is wider than 64 of K, the next 64
/// are another tile.
__device__ __forceinline__ std::uint64_t k_major_operand(const void* tile) {
  std::uint64_t address = shared_address(tile);
  return ((address & 0x3ffff) >> 4) | (1ull << 16) | (std::uint64_t{1024 >> 4} << 32) | (1ull << 62);
}

/// MN-major (rows are K, 64 bf16 of N a row): the next 64 of N lie `next_tile` bytes on; a step of 16 in K is
/// 2048 bytes.
__device__ __forceinline__ std::uint64_t mn_major_operand(const void* tile, std::uint32_t next_tile) {
  std::uint64_t address = shared_address(tile);
  return ((address & 0x3ffff) >> 4) | (static_cast<std::uint64_t>(next_tile >> 4) << 16) |
         (std::uint64_t{1024 >> 4} << 32) | (1ull << 62);
}

/// The operand `bytes` further on.
__device__ __forceinline__ std::uint64_t advance(std::uint64_t operand, std::uint32_t bytes) {
  return operand + (bytes >> 4);
}

/// Before the first wgmma of a batch: register operands written so far are in place.
__device__ __forceinline__ void wgmma_fence() {
  asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
}
__device__ __forceinline__ void wgmma_commit() {
  asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}
/// Waits until at most kPending committed batches are still running.
template <int kPending>
__device__ __forceinline__ void wgmma_wait() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(kPending) : "memory");
}

/// Keeps the compiler from moving uses of a wgmma's registers across this point (the instruction is
/// asynchronous, which the compiler cannot know).
template <int kCount>
__device__ __forceinline__ void pin(float (&r)[kCount]) {
#pragma unroll
  for (int i = 0; i < kCount; ++i) asm volatile("" : "+f"(r[i])::"memory");
}
template <int kCount>
__device__ __forceinline__ void pin(std::uint32_t (&r)[kCount]) {
#pragma unroll
  for (int i = 0; i < kCount; ++i) asm volatile("" : "+r"(r[i])::"memory");
}

// Accumulator d of m64nNk16: thread t of the warpgroup holds, for each 8 columns j, d[4j], d[4j+1] at row
// 16·(t/32) + (t%32)/4, columns 8j + 2·(t%4) + {0,1}, and d[4j+2], d[4j+3] eight rows below. Two neighbours j
// = 2s, 2s+1, rounded to pairs of bf16, are the A operand of step s of a following product.

#define MAGI_T10(t) \
  "%" #t "0,%" #t "1,%" #t "2,%" #t "3,%" #t "4,%" #t "5,%" #t "6,%" #t "7,%" #t "8,%" #t "9"
#define MAGI_T0 "%0,%1,%2,%3,%4,%5,%6,%7,%8,%9"
#define MAGI_T40 MAGI_T0 "," MAGI_T10(1) "," MAGI_T10(2) "," MAGI_T10(3)
#define MAGI_D2(i) "+f"(d[i]), "+f"(d[i + 1])
#define MAGI_D4(i) MAGI_D2(i), MAGI_D2(i + 2)
#define MAGI_D8(i) MAGI_D4(i), MAGI_D4(i + 4)
#define MAGI_D16(i) MAGI_D8(i), MAGI_D8(i + 8)
#define MAGI_D32(i) MAGI_D16(i), MAGI_D16(i + 16)

// d (+)= A·B, both from shared memory and K-major. kAdd = 0 overwrites d.
#define MAGI_WGMMA_SS(N, COUNT, TEXT, A, B, ADD, ...)                                             \
  template <int kAdd>                                                                             \
  __device__ __forceinline__ void wgmma_ss(float(&d)[COUNT], std::uint64_t a, std::uint64_t b) {  \
    asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, " ADD                                          \
                 ", 0;\n"                                                                         \
                 "wgmma.mma_async.sync.aligned.m64n" #N "k16.f32.bf16.bf16 {" TEXT "}, " A ", " B \
                 ", p, 1, 1, 0, 0;\n}"                                                            \
                 : __VA_ARGS__                                                                    \
                 : "l"(a), "l"(b), "n"(kAdd));                                                    \
  }
MAGI_WGMMA_SS(80, 40, MAGI_T40, "%40", "%41", "%42", MAGI_D32(0), MAGI_D8(32))
MAGI_WGMMA_SS(96, 48, MAGI_T40 ",%40,%41,%42,%43,%44,%45,%46,%47", "%48", "%49", "%50", MAGI_D32(0),
              MAGI_D16(32))
MAGI_WGMMA_SS(128, 64, MAGI_T40 "," MAGI_T10(4) "," MAGI_T10(5) ",%60,%61,%62,%63", "%64", "%65", "%66",
              MAGI_D32(0), MAGI_D32(32))
MAGI_WGMMA_SS(160, 80, MAGI_T40 "," MAGI_T10(4) "," MAGI_T10(5) "," MAGI_T10(6) "," MAGI_T10(7), "%80", "%81",
              "%82", MAGI_D32(0), MAGI_D32(32), MAGI_D16(64))
MAGI_WGMMA_SS(176, 88,
              MAGI_T40 "," MAGI_T10(4) "," MAGI_T10(5) "," MAGI_T10(6) "," MAGI_T10(
                  7) ",%80,%81,%82,%83,%84,%85,%86,%87",
              "%88", "%89", "%90", MAGI_D32(0), MAGI_D32(32), MAGI_D16(64), MAGI_D8(80))

/// d[64×128] (+)= A·B with A in registers and B from shared memory, MN-major (kTranspose = 1) or K-major (0).
template <int kTranspose, int kAdd>
__device__ __forceinline__ void wgmma_rs_n128(float (&d)[64], std::uint32_t a0, std::uint32_t a1,
                                              std::uint32_t a2, std::uint32_t a3, std::uint64_t b) {
  asm volatile(
      "{\n.reg .pred p;\nsetp.ne.b32 p, %70, 0;\n"
      "wgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16 {" MAGI_T40
      "," MAGI_T10(4) "," MAGI_T10(5) ",%60,%61,%62,%63}, {%64,%65,%66,%67}, %68, p, 1, 1, %69;\n}"
      : MAGI_D32(0), MAGI_D32(32)
      : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "l"(b), "n"(kTranspose), "n"(kAdd));
}

#undef MAGI_WGMMA_SS
#undef MAGI_T10
#undef MAGI_T0
#undef MAGI_T40
#undef MAGI_D2
#undef MAGI_D4
#undef MAGI_D8
#undef MAGI_D16
#undef MAGI_D32

// ---------------------------------------------------------------- arithmetic

/// 2^x, flushing to zero; relative error 2^-22.
__device__ __forceinline__ float exp2_fast(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

/// Two floats rounded to bf16, `low` in the low half.
__device__ __forceinline__ std::uint32_t pack_bf16(float low, float high) {
  std::uint32_t packed;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(packed) : "f"(high), "f"(low));
  return packed;
}

/// words[i] of lane t of a quad → words[t] of lane i.
__device__ __forceinline__ void transpose_quad(std::uint32_t (&words)[4]) {
  const bool odd = threadIdx.x & 1, upper = threadIdx.x & 2;
  const auto by_lane = [&] {  // element i ← element i ^ t
    const auto swap = [](bool take, std::uint32_t& a, std::uint32_t& b) {
      const std::uint32_t first = take ? b : a;
      b = take ? a : b;
      a = first;
    };
    swap(odd, words[0], words[1]);
    swap(odd, words[2], words[3]);
    swap(upper, words[0], words[2]);
    swap(upper, words[1], words[3]);
  };
  by_lane();
#pragma unroll
  for (int i = 1; i < 4; ++i) words[i] = __shfl_xor_sync(~0u, words[i], i);
  by_lane();
}

}  // namespace magi::sm90
