// SPDX-License-Identifier: Apache-2.0
// Fused expert FFN on Hopper: E(z) = bf16(swiglu7(z·W_gate, z·W_up))·W_down for every (expert, rows) work
// item, in one persistent launch. Shaped like attention: the hidden dimension goes by in chunks of 64; gate
// and up of a chunk are one wgmma of 128 columns whose two halves are separate accumulators in the same
// thread; swiglu7 happens in registers and its result is the A operand of the down product, which accumulates
// 64×256 per warpgroup.
//
// Warps: two consumer warpgroups of 64 rows each, which drift apart by themselves so that one's swiglu7 runs
// under the other's products; one producer warpgroup: warp 0 streams weight blocks, warp 1 hands out work
// items, warps 2 and 3 gather rows of z. What was tried besides (turns, clusters with multicast, half
// chunks): docs/performance.md.
#include "ops/cuda/experts_sm90.cuh"
#include "ops/cuda/moe.h"

#ifndef MAGI_SM90A
#pragma nv_diag_suppress 177  // elsewhere the kernel has no body, and its parts no use
#endif

namespace magi::cuda {
namespace moe {
namespace {

struct ExpertsShared : Tiles {
  ItemRing items;

  __device__ __forceinline__ void init() {
    Tiles::init();
    items.init();
  }
};

// ---------------------------------------------------------------- producers

/// Streams an expert's weights, 32 KB blocks in the order of use; one thread.
__device__ void stream_weights(ExpertsShared& s, const ExpertsArgs& a) {
  Items<false> items{s.items};
  Ring<kStages> ring;
  int4 item{};
  const int blocks = a.chunks * kBlocksPerChunk;
  while (items.next(item)) {
    const unsigned char* from = a.expert(item);
    for (int b = 0; b < blocks; ++b, ring.next(), from += kBlockBytes) {
      barrier_wait(&s.empty[ring.stage], ring.parity ^ 1);
      barrier_expect(&s.full[ring.stage], kBlockBytes);
      load_bulk(&s.full[ring.stage], s.ring[ring.stage], from, kBlockBytes);
    }
  }
}

/// Gathers the rows of z by routing: 32 of each warpgroup's 64; one warp.
__device__ void gather_rows(ExpertsShared& s, const ExpertsArgs& a, int half, int lane) {
  Items<true> items{s.items};
  int4 item{};
  std::uint32_t parity[2] = {1, 1};
  while (items.next(item)) {
    const int* order = a.order + item.w * a.slots + item.y;
    const __nv_bfloat16* z = a.z + item.w * kDim;
#pragma unroll
    for (int group = 0; group < 2; ++group) {
      if (group * 64 >= item.z) break;
      int base = group * 64 + half * 32;
      int token = base + lane < item.z ? order[base + lane] / a.top_k : -1;
      barrier_wait(&s.z_empty[group], parity[group]);
      parity[group] ^= 1;
#pragma unroll 1
      for (int i = 0; i < 32; ++i) {
        int row = __shfl_sync(0xffffffffu, token, i);
        if (row >= 0) copy_row(s.z, base + i, z + row * a.z_pitch, lane);
      }
      copies_announce(&s.z_full[group], lane);
    }
  }
}

// ---------------------------------------------------------------- consumers

__device__ __forceinline__ void release_block(ExpertsShared& s, int stage, int lane) {
  if (lane == 0) barrier_arrive(&s.empty[stage]);
}

/// Issues z·[gate|up] over half of K with the weight block of 128 columns × 128 of K.
template <int kHalf>
__device__ __forceinline__ void issue_gate_up(float (&gu)[64], std::uint64_t z, std::uint64_t weights) {
#pragma unroll
  for (int step = 0; step < 8; ++step) {
    std::uint64_t za = advance(z, (kHalf * 2 + step / 4) * kZTile + (step % 4) * 32);
    std::uint64_t wb = advance(weights, (step / 4) * (kBlockBytes / 2) + (step % 4) * 32);
    if (kHalf == 0 && step == 0)
      wgmma_ss<0>(gu, za, wb);
    else
      wgmma_ss<1>(gu, za, wb);
  }
}

/// Issues down (+)= h·W_down over a chunk.
__device__ __forceinline__ void issue_down(float (&down)[128], const std::uint32_t (&h)[16],
                                           std::uint64_t weights, bool add) {
#pragma unroll
  for (int step = 0; step < 4; ++step)
    wgmma_rs_n256(down, h + 4 * step, advance(weights, step * 32), step > 0 || add);
}

/// A chunk's hidden values as the A operand of the down product.
__device__ __forceinline__ void activate(const float (&gu)[64], std::uint32_t (&h)[16]) {
#pragma unroll
  for (int pair = 0; pair < 16; ++pair) {
    float low = swiglu7(gu[2 * pair], gu[32 + 2 * pair]);
    float high = swiglu7(gu[2 * pair + 1], gu[32 + 2 * pair + 1]);
    h[pair] = pack_bf16(low, high);
  }
}

__device__ __forceinline__ void store_rows(const float (&down)[128], const ExpertsArgs& a, int head,
                                           int slot_a, int slot_b, int quad) {
  std::int64_t base = (head - a.first_head) * a.slots;
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    int slot = half ? slot_b : slot_a;
    if (slot < 0) continue;
    uint4* to = reinterpret_cast<uint4*>(a.expanded + (base + slot) * kDim) + quad;
#pragma unroll
    for (int g = 0; g < 8; ++g) {
      const float* d = down + 16 * g + 2 * half;
      __stcs(to + 4 * g, make_uint4(pack_bf16(d[0], d[1]), pack_bf16(d[4], d[5]), pack_bf16(d[8], d[9]),
                                    pack_bf16(d[12], d[13])));
    }
  }
}

__device__ __forceinline__ void consume(ExpertsShared& s, const ExpertsArgs& a) {
  const int group = __shfl_sync(0xffffffffu, threadIdx.x / kWarpgroup, 0), warp = threadIdx.x / 32 % 4,
            lane = threadIdx.x % 32;
  const std::uint64_t z = k_major_operand(s.z[0] + group * (kZTile / 2));
  const std::uint64_t ring_base = k_major_operand(s.ring[0]);
  auto block = [&](int stage) { return ring_base + static_cast<std::uint64_t>(stage * (kBlockBytes >> 4)); };
  Items<true> items{s.items};
  Ring<kStages> ring;
  int4 item{};
  std::uint32_t z_parity = 0;
  float down[128], gu[64];
  std::uint32_t h[16];

  // gu = z·[gate|up] of the next chunk; frees the block `before` of the product still running, if any.
  auto gate_up = [&](int before) {
    barrier_wait(&s.full[ring.stage], ring.parity);
    wgmma_fence();
    issue_gate_up<0>(gu, z, block(ring.stage));
    wgmma_commit();
    const int first = ring.stage;
    ring.next();
    if (before >= 0) {
      wgmma_wait<1>();
      release_block(s, before, lane);
    }
    barrier_wait(&s.full[ring.stage], ring.parity);
    wgmma_fence();
    issue_gate_up<1>(gu, z, block(ring.stage));
    wgmma_commit();
    wgmma_wait<1>();
    release_block(s, first, lane);
    wgmma_wait<0>();
    release_block(s, ring.stage, lane);
    ring.next();
    pin(gu);
  };
  // Starts down (+)= swiglu7(gu)·W_down; returns the block in use.
  auto down_chunk = [&](bool add) {
    activate(gu, h);
    barrier_wait(&s.full[ring.stage], ring.parity);
    wgmma_fence();
    issue_down(down, h, block(ring.stage), add);
    wgmma_commit();
    const int held = ring.stage;
    ring.next();
    return held;
  };

  while (items.next(item)) {
    if (group * 64 >= item.z) {
      // No rows here, but the blocks still pass: a producer waits for every consumer.
      for (int b = 0; b < a.chunks * kBlocksPerChunk; ++b, ring.next()) {
        barrier_wait(&s.full[ring.stage], ring.parity);
        release_block(s, ring.stage, lane);
      }
      continue;
    }
    const int row = group * 64 + warp * 16 + lane / 4;
    const int* order = a.order + item.w * a.slots + item.y;
    const int slot_a = row < item.z ? order[row] : -1, slot_b = row + 8 < item.z ? order[row + 8] : -1;

    barrier_wait(&s.z_full[group], z_parity);
    z_parity ^= 1;
    gate_up(-1);
    for (int chunk = 1; chunk < a.chunks; ++chunk) gate_up(down_chunk(chunk > 1));
    if (lane == 0) barrier_arrive(&s.z_empty[group]);
    const int held = down_chunk(a.chunks > 1);
    wgmma_wait<0>();
    release_block(s, held, lane);
    pin(down);
    store_rows(down, a, item.w, slot_a, slot_b, lane % 4);
  }
}

__global__ __launch_bounds__(kThreads, 1) void experts_kernel(const __grid_constant__ ExpertsArgs a) {
#ifdef MAGI_SM90A
  extern __shared__ __align__(1024) unsigned char memory[];
  ExpertsShared& s = *reinterpret_cast<ExpertsShared*>(memory);
  share_expert_roles(
      s, a, [](int) { return true; }, [&] { stream_weights(s, a); },
      [&](int half, int lane) { gather_rows(s, a, half, lane); }, [&] { consume(s, a); });
#else
  __trap();  // built for sm_90 without the a
#endif
}

}  // namespace
}  // namespace moe

void run_experts(const void* z, std::int64_t z_pitch, const void* packed, const SortedRouting& sorted,
                 void* expanded, int first_head, int head_count, const MoeShape& shape, cudaStream_t stream) {
  moe::launch_experts(moe::experts_kernel, sizeof(moe::ExpertsShared), z, z_pitch, packed,
                      static_cast<std::int64_t>(packed_experts_bytes(shape, 1) / shape.experts), sorted,
                      expanded, first_head, head_count, shape, stream, "run_experts");
}

}  // namespace magi::cuda
