// SPDX-License-Identifier: Apache-2.0
// The consumers of the expert FFN from NVFP4 weights (experts_nvfp4_sm90.cu, which tells the whole), and the
// shared memory that they and the producers meet in.
#pragma once

#include "ops/cuda/experts_sm90.cuh"
#include "ops/cuda/nvfp4.cuh"
#include "ops/nvfp4.h"

namespace magi::cuda::moe {

inline constexpr int kTileBytes = Nvfp4Layout::kTileBytes, kTileScales = Nvfp4Layout::kTileValueBytes;
inline constexpr int kPiece =
    4 * kTileBytes;  ///< of the stream: half of K of gate and up of a chunk, or the chunk of down
inline constexpr int kPieces = 3;  ///< a chunk
inline constexpr int kHiddenTile = kRows * 128;
inline constexpr int kConsumers = 2 * kWarpgroup;
inline constexpr int kGateUpPending =
    2;  ///< steps of 16 in K still running while the next one's weights are dequantised

/// Two of everything: chunk n (counted over all items) uses buffer n % 2, item n likewise. What all lanes of
/// a warp read or write with ordinary instructions is given away by each of them (behind a __syncwarp, for
/// which the compiler emits nothing, one lane's word for the others is an order that racecheck does not see);
/// what wgmma reads, by one.
struct Nvfp4Shared {
  alignas(1024) unsigned char z[2][kDim / 64][kZTile];
  alignas(1024) unsigned char h[2][kHiddenTile];
  alignas(128) unsigned char pieces[2][kPieces][kPiece];
  int slot[2][kRows];  ///< where the rows of z come from and go to
  float4 scale[2];     ///< of the item's accumulators of gate, up and down
  uint2 lift[2];       ///< of its block scales of gate and up
  int4 item[2];
  std::uint64_t full[2][kPieces], empty[2][kPieces];
  std::uint64_t z_full[2], z_empty[2];
  std::uint64_t h_full[2], h_empty[2];
  std::uint64_t lead;  ///< the first warpgroup's, by gate and up of an item's first chunk
  ItemRing items;

  __device__ __forceinline__ void init() {
    for (int i = 0; i < 2; ++i) {
      for (int p = 0; p < kPieces; ++p) {
        barrier_init(&full[i][p], 1);
        barrier_init(&empty[i][p], kConsumers);
      }
      barrier_init(&z_full[i], 2 * 32);
      barrier_init(&z_empty[i], kConsumers);
      barrier_init(&h_full[i], kConsumerWarps);
      barrier_init(&h_empty[i], kConsumerWarps);
    }
    barrier_init(&lead, 4);
    items.init();
  }
};

// ---------------------------------------------------------------- products

#define MAGI_D4(i) "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3])
#define MAGI_D16(i) MAGI_D4(i), MAGI_D4(i + 4), MAGI_D4(i + 8), MAGI_D4(i + 12)
#define MAGI_T10(t) \
  "%" #t "0,%" #t "1,%" #t "2,%" #t "3,%" #t "4,%" #t "5,%" #t "6,%" #t "7,%" #t "8,%" #t "9"

#define MAGI_T32 "%0,%1,%2,%3,%4,%5,%6,%7,%8,%9," MAGI_T10(1) "," MAGI_T10(2) ",%30,%31"
#define MAGI_T64 MAGI_T32 ",%32,%33,%34,%35,%36,%37,%38,%39," MAGI_T10(4) "," MAGI_T10(5) ",%60,%61,%62,%63"
/// d[64×N] (+)= A·B, A in registers, B [N rows][K] in shared memory.
#define MAGI_WGMMA_RS(N, TEXT, A, B, ADD, ...)                                                            \
  __device__ __forceinline__ void wgmma_rs(float(&d)[N / 2], const std::uint32_t(&a)[4], std::uint64_t b, \
                                           bool add) {                                                    \
    asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, " ADD ", 0;\nwgmma.mma_async.sync.aligned.m64n" #N     \
                 "k16.f32.bf16.bf16 {" TEXT "}, {" A "}, " B ", p, 1, 1, 0;\n}"                           \
                 : __VA_ARGS__                                                                            \
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(static_cast<int>(add)));       \
  }
MAGI_WGMMA_RS(64, MAGI_T32, "%32,%33,%34,%35", "%36", "%37", MAGI_D16(0), MAGI_D16(16))
MAGI_WGMMA_RS(128, MAGI_T64, "%64,%65,%66,%67", "%68", "%69", MAGI_D16(0), MAGI_D16(16), MAGI_D16(32),
              MAGI_D16(48))
#undef MAGI_WGMMA_RS
#undef MAGI_T64
#undef MAGI_T32
#undef MAGI_T10
#undef MAGI_D16
#undef MAGI_D4

/// Step 16·kStep of a word's: this thread's part of the A operand from words and scales (nvfp4_scales) of
/// rows 0–7 and rows 8–15 of the warp's 16; `rows`: the B operand.
template <int kStep, int kAcc>
__device__ __forceinline__ void multiply(float (&d)[kAcc], std::uint32_t upper, std::uint32_t upper_scales,
                                         std::uint32_t lower, std::uint32_t lower_scales, std::uint64_t rows,
                                         bool add) {
  std::uint32_t o[4];
  nvfp4_weights<kStep>(upper, upper_scales, o[0], o[2]);
  nvfp4_weights<kStep>(lower, lower_scales, o[1], o[3]);
  pin(o);
  wgmma_fence();
  wgmma_rs(d, o, advance(rows, kStep * 32), add);
  wgmma_commit();
}

// ---------------------------------------------------------------- consumers

/// Four matrices of 8×8 (rows: hidden columns; columns: rows of the item), transposed, to 16 bytes at 32
/// addresses.
__device__ __forceinline__ void store_transposed(std::uint32_t to, const std::uint32_t (&m)[4]) {
  asm volatile("stmatrix.sync.aligned.m8n8.x4.trans.shared.b16 [%0], {%1,%2,%3,%4};" ::"r"(to), "r"(m[0]),
               "r"(m[1]), "r"(m[2]), "r"(m[3])
               : "memory");
}

template <typename T>
__device__ __forceinline__ T read_shared(std::uint32_t address);
template <>
__device__ __forceinline__ std::uint32_t read_shared(std::uint32_t address) {
  std::uint32_t v;
  asm volatile("ld.shared.b32 %0, [%1];" : "=r"(v) : "r"(address) : "memory");
  return v;
}
template <>
__device__ __forceinline__ uint2 read_shared(std::uint32_t address) {
  uint2 v;
  asm volatile("ld.shared.v2.b32 {%0,%1}, [%2];" : "=r"(v.x), "=r"(v.y) : "r"(address) : "memory");
  return v;
}
template <>
__device__ __forceinline__ float2 read_shared(std::uint32_t address) {
  float2 v;
  asm volatile("ld.shared.v2.f32 {%0,%1}, [%2];" : "=f"(v.x), "=f"(v.y) : "r"(address) : "memory");
  return v;
}

/// A consumer warp's state. Registers are short: 192 of 240 are accumulators.
template <int kN>
struct Consumer {
  static constexpr int kAcc = kN / 2;  ///< accumulators of 64 columns, a thread
  Nvfp4Shared& s;
  std::uint32_t in_values, in_scales;    ///< this thread's place in tiles of gate and up
  std::uint32_t out_values, out_scales;  ///< … in a piece of down
  std::uint32_t h_at;                    ///< … in a tile of h
  std::uint32_t step = 0;                ///< chunks so far, of all items

  __device__ __forceinline__ explicit Consumer(Nvfp4Shared& shared) : s(shared) {
    const int group = threadIdx.x / kWarpgroup, warp = threadIdx.x / 32 % 4, lane = threadIdx.x % 32,
              g = lane / 4, q = lane % 4;
    const int hidden = group * 32 + warp * 8 + g;  // of a chunk's 64
    in_values = static_cast<std::uint32_t>((hidden ^ (hidden / 4 % 4)) * 32 + q * 8);
    in_scales = static_cast<std::uint32_t>(kTileScales + hidden * 4);
    const int tile = group * 2 + warp / 2,
              row = warp % 2 * 32 + g * 4;  // of the result's 256 columns: four from here
    out_values = static_cast<std::uint32_t>(tile * kTileBytes + (row + g % 4) * 32 + q * 8);
    out_scales = static_cast<std::uint32_t>(tile * kTileBytes + kTileScales + row * 4);
    h_at = shared_address(s.h[0]) + static_cast<std::uint32_t>(swizzled(lane, group * 4 + warp));
  }

  __device__ __forceinline__ static void arrive(std::uint64_t* barrier) {
    if (threadIdx.x % 32 == 0) barrier_arrive(barrier);
  }
  /// Piece i of chunk n, once it is there.
  __device__ __forceinline__ std::uint32_t piece(std::uint32_t n, int i) {
    barrier_wait(&s.full[n % 2][i], n / 2 % 2);
    return shared_address(s.pieces[n % 2][i]);
  }
  /// When this thread has read all of it that it needs.
  __device__ __forceinline__ void release_piece(std::uint32_t n, int i) {
    barrier_arrive(&s.empty[n % 2][i]);
  }

  /// gu = [gate|up] of chunk `step`, the end of it still in flight. kFree: gives back the h of two chunks
  /// before.
  template <bool kFree>
  __device__ __forceinline__ void gate_up(float (&gu)[kAcc], std::uint64_t z, std::uint32_t lift_at) {
#pragma unroll
    for (int k = 0; k < 4; ++k) {  // tiles along K, two a piece
      const std::uint32_t from = k % 2 == 0 ? piece(step, k / 2) : shared_address(s.pieces[step % 2][k / 2]),
                          gate_at = from + k % 2 * 2 * kTileBytes, up_at = gate_at + kTileBytes;
      const uint2 gate = read_shared<uint2>(gate_at + in_values), up = read_shared<uint2>(up_at + in_values);
      const uint2 lift = read_shared<uint2>(lift_at);
      const auto gate_scales = read_shared<std::uint32_t>(gate_at + in_scales),
                 up_scales = read_shared<std::uint32_t>(up_at + in_scales);
      if (k % 2 == 1) release_piece(step, k / 2);
#pragma unroll
      for (int pair = 0; pair < 2; ++pair) {
        const std::uint64_t rows = advance(z, k * kZTile + pair * 64);
        const std::uint32_t gate_word = pair ? gate.y : gate.x, up_word = pair ? up.y : up.x,
                            gate_pair = nvfp4_scales(gate_scales, pair, lift.x),
                            up_pair = nvfp4_scales(up_scales, pair, lift.y);
        multiply<0>(gu, gate_word, gate_pair, up_word, up_pair, rows, k + pair > 0);
        wgmma_wait<kGateUpPending>();
        multiply<1>(gu, gate_word, gate_pair, up_word, up_pair, rows, true);
        wgmma_wait<kGateUpPending>();
        if (kFree && k == 0 && pair == 1) arrive(&s.h_empty[step % 2]);  // the down products before are done
      }
    }
  }

  /// What of the matrices' scales does not fit into the blocks'; rarely anything.
  __device__ __forceinline__ static void scale(float (&gu)[kAcc], std::uint32_t scales_at) {
    const float2 rest = read_shared<float2>(scales_at);
    if (rest.x == 1.0f && rest.y == 1.0f) return;
#pragma unroll
    for (int i = 0; i < kAcc; ++i) gu[i] *= i % 4 < 2 ? rest.x : rest.y;
  }

  /// h of rows 32·part … +31 of the item.
  __device__ __forceinline__ void activate(const float* gu, int part) {
    std::uint32_t m[4];
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      const float* d = gu + 16 * part + 4 * j;
      m[j] = pack_bf16(swiglu7(d[0], d[2]), swiglu7(d[1], d[3]));
    }
    store_transposed(h_at + step % 2 * kHiddenTile + static_cast<std::uint32_t>(part * 4096), m);
  }

  /// kDown: down (+)= W_down·h of the chunk before `step`. kActivate: h of chunk `step`, under it.
  template <bool kDown, bool kActivate>
  __device__ __forceinline__ void down_and_activate(float (&down)[2][kAcc], float (&gu)[kAcc], bool add,
                                                    std::uint32_t scales_at) {
    const std::uint32_t before = step - 1;
    std::uint32_t from = 0;
    std::uint64_t h = 0;
    if constexpr (kDown) {
      h = k_major_operand(s.h[before % 2]);
      barrier_wait(&s.h_full[before % 2], before / 2 % 2);
      from = piece(before, 2);
    } else {
      wgmma_wait<0>();
      pin(gu);
      scale(gu, scales_at);
    }
    if constexpr (kActivate) barrier_wait(&s.h_empty[step % 2], (step / 2 % 2) ^ 1);
#pragma unroll
    for (int m = 0; m < 2; ++m) {
      uint2 upper{}, lower{}, scales{};
      if constexpr (kDown) {
        upper = read_shared<uint2>(from + (out_values ^ (64 * m)));
        lower = read_shared<uint2>(from + (out_values ^ (64 * m + 32)));
        scales = read_shared<uint2>(from + out_scales + 8 * m);
        if (m == 1) release_piece(before, 2);
      }
#pragma unroll
      for (int pair = 0; pair < 2; ++pair) {
        if constexpr (kDown) {
          const std::uint64_t rows = advance(h, pair * 64);
          const std::uint32_t upper_word = pair ? upper.y : upper.x, lower_word = pair ? lower.y : lower.x;
          const std::uint32_t upper_pair = nvfp4_scales(scales.x, pair),
                              lower_pair = nvfp4_scales(scales.y, pair);
          multiply<0>(down[m], upper_word, upper_pair, lower_word, lower_pair, rows, pair > 0 || add);
          multiply<1>(down[m], upper_word, upper_pair, lower_word, lower_pair, rows, true);
          if (m == 0 && pair == 0) {  // gate and up are done: down runs behind them
            wgmma_wait<2>();
            pin(gu);
            scale(gu, scales_at);
          }
        }
        if constexpr (kActivate) {
          if (32 * (2 * m + pair) < kN) activate(gu, 2 * m + pair);
        }
        if constexpr (kDown) {
          if (m == 0 || pair == 0) wgmma_wait<0>();
        }
      }
    }
    if constexpr (kActivate) {
      fence_async_proxy();
      __syncwarp();
      arrive(&s.h_full[step % 2]);
    }
  }

  __device__ __forceinline__ void store(const float (&down)[2][kAcc], const ExpertsArgs& a, int buffer) {
    const int4 item = s.item[buffer];
    const float scale = s.scale[buffer].z;
    const int column = threadIdx.x / 32 * 32 + threadIdx.x % 32 / 4 * 4;
    __nv_bfloat16* to = a.expanded + (item.w - a.first_head) * a.slots * kDim + column;
#pragma unroll
    for (int j = 0; j < kN / 8; ++j) {
#pragma unroll
      for (int e = 0; e < 2; ++e) {
        const int row = 8 * j + 2 * (threadIdx.x % 4) + e;
        if (row >= item.z) continue;
        const float *low = down[0] + 4 * j + e, *high = down[1] + 4 * j + e;
        __stcs(reinterpret_cast<uint2*>(to + static_cast<std::int64_t>(s.slot[buffer][row]) * kDim),
               make_uint2(pack_bf16(low[0] * scale, low[2] * scale),
                          pack_bf16(high[0] * scale, high[2] * scale)));
      }
    }
  }

  /// An item; results of rows that it does not have are not stored.
  __device__ __forceinline__ void run(const ExpertsArgs& a, int buffer) {
    const std::uint64_t z = k_major_operand(s.z[buffer][0]);
    const std::uint32_t scales = shared_address(&s.scale[buffer]);
    const std::uint32_t lift = shared_address(&s.lift[buffer]);
    float down[2][kAcc], gu[kAcc];
    gate_up<false>(gu, z, lift);
    if (threadIdx.x < kWarpgroup) arrive(&s.lead);
    down_and_activate<false, true>(down, gu, false, scales);
    ++step;
    if (a.chunks > 1) {
      gate_up<false>(gu, z, lift);
      down_and_activate<true, true>(down, gu, false, scales);
      ++step;
    }
#pragma unroll 1
    for (int chunk = 2; chunk < a.chunks; ++chunk, ++step) {
      gate_up<true>(gu, z, lift);
      down_and_activate<true, true>(down, gu, true, scales);
    }
    down_and_activate<true, false>(down, gu, a.chunks > 1, scales);
    wgmma_wait<0>();
    pin(down[0]);
    pin(down[1]);
    if (a.chunks > 1) arrive(&s.h_empty[step % 2]);
    arrive(&s.h_empty[(step + 1) % 2]);
    store(down, a, buffer);
  }
};

}  // namespace magi::cuda::moe
