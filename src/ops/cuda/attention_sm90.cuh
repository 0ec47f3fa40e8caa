// SPDX-License-Identifier: Apache-2.0
// Attention on Hopper's tensor cores, head_dim 128, after FlashAttention-3 (Shah et al., 2024): one warpgroup
// copies, the others multiply. Each consumer warpgroup owns 64 query rows; while one does the softmax of a
// key tile, another's products run (they take turns by named barriers), and within a warpgroup the next q·kᵀ
// is issued before the current P·V.
//
// A block keeps its query rows, a ring of K tiles and one of V tiles in shared memory. Blocks are persistent
// and walk the list of query tiles (attention_walk.cuh). A row's result depends on its q and its keys alone,
// whatever else runs.
#pragma once

#include <cmath>
#include <cstdint>

#include "ops/cuda/attention_walk.cuh"
#include "ops/cuda/sm90.cuh"

namespace magi::cuda {

/// Shape of the kernel. kKeys: keys a tile; kGroups: consumer warpgroups; kStages: depth of the K and of the
/// V ring.
template <int kKeys_, int kGroups_, int kStages_, template <int, int> class WalkOf = FullWalk>
struct AttentionShape {
  static constexpr int kKeys = kKeys_;
  static constexpr int kGroups = kGroups_;
  static constexpr int kStages = kStages_;
  static constexpr int kDim = 128;
  static constexpr int kQueries = 64 * kGroups;  ///< rows a block
  static constexpr int kThreads = 128 * (kGroups + 1);
  static constexpr int kProducerRegisters = kGroups == 2 ? 40 : 32;
  static constexpr int kConsumerRegisters = kGroups == 2 ? 232 : 160;
  using Walk = WalkOf<kQueries, kKeys>;
  static_assert(kKeys % 16 == 0 && (kGroups == 2 || kGroups == 3));
};

template <class Shape>
struct AttentionShared {
  alignas(1024) __nv_bfloat16 q[2][Shape::kQueries][64];  ///< [half of head_dim], rows swizzled by TMA
  alignas(1024) __nv_bfloat16 k[Shape::kStages][2][Shape::kKeys][64];
  alignas(1024) __nv_bfloat16 v[Shape::kStages][2][Shape::kKeys][64];
  std::uint64_t q_full, q_empty;
  std::uint64_t k_full[Shape::kStages], k_empty[Shape::kStages];
  std::uint64_t v_full[Shape::kStages], v_empty[Shape::kStages];
};

/// Position in a ring of stages; `parity` is that of the phase in which the stage becomes full.
template <int kStages>
struct RingPosition {
  std::uint32_t stage = 0;
  std::uint32_t parity = 0;
  __device__ __forceinline__ RingPosition next() const {
    const bool wraps = stage == kStages - 1;
    return {wraps ? 0 : stage + 1, parity ^ wraps};
  }
};

// ---------------------------------------------------------------- producer

/// One K or V tile, `column` its first column in the packed buffer, into a ring.
template <class Shape>
__device__ __forceinline__ void attention_load_tile(const CUtensorMap* map, int column, int row,
                                                    RingPosition<Shape::kStages>& ring, std::uint64_t* full,
                                                    std::uint64_t* empty,
                                                    __nv_bfloat16 (*stages)[2][Shape::kKeys][64]) {
  std::uint64_t* barrier = &full[ring.stage];
  sm90::barrier_wait(&empty[ring.stage], ring.parity ^ 1);
  sm90::barrier_expect(barrier, Shape::kKeys * Shape::kDim * sizeof(__nv_bfloat16));
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    sm90::load_box(map, barrier, stages[ring.stage][half], column + 64 * half, row);
  }
  ring = ring.next();
}

/// K runs one tile ahead of V, as the consumers use them.
template <class Shape>
__device__ __forceinline__ void attention_produce(const AttentionParams& p, AttentionShared<Shape>& shared) {
  RingPosition<Shape::kStages> k_ring, v_ring;
  std::uint32_t q_parity = 0;
  for (int index = blockIdx.x; index < p.tiles; index += gridDim.x) {
    const AttentionTile tile = attention_tile(p, index);
    const CUtensorMap* keys = &tile.sample->keys;
    const int k_column = (p.heads + tile.kv_head) * Shape::kDim;
    const int v_column = k_column + p.kv_heads * Shape::kDim;
    typename Shape::Walk walk(p, tile);

    attention_load_tile<Shape>(keys, k_column, walk.row, k_ring, shared.k_full, shared.k_empty, shared.k);
    sm90::barrier_wait(&shared.q_empty, q_parity ^ 1);
    q_parity ^= 1;
    sm90::barrier_expect(&shared.q_full, sizeof(shared.q));
    for (int half = 0; half < 2; ++half) {
      sm90::load_box(&tile.sample->queries, &shared.q_full, shared.q[half],
                     tile.head * Shape::kDim + 64 * half, Shape::Walk::query_row(p, tile));
    }
    for (;;) {
      const int row = walk.row;
      const bool last = walk.last();
      if (!last) {
        walk.next();
        attention_load_tile<Shape>(keys, k_column, walk.row, k_ring, shared.k_full, shared.k_empty, shared.k);
      }
      attention_load_tile<Shape>(keys, v_column, row, v_ring, shared.v_full, shared.v_empty, shared.v);
      if (last) break;
    }
  }
}

// ---------------------------------------------------------------- consumers

/// A thread's share of the running softmax: of rows r and r + 8 of its warp's 16. max in units of q·k; sum
/// over the thread's own columns, the four threads of a row are added at the end.
struct RunningSoftmax {
  float max[2];
  float sum[2];
};

/// Replaces scores s by exp2((s − max)·scale); returns in `alpha` the factors that the accumulated output
/// needs. A row's maximum moves only when it rises by more than 2^8, which spares most rescalings of the
/// output: sums stay far inside f32, relative errors stay the same, and the choice is the row's own.
template <int kCount>
__device__ __forceinline__ void attention_softmax(float (&s)[kCount], RunningSoftmax& state, float scale_log2,
                                                  float (&alpha)[2]) {
  float top[2][2] = {{s[0], s[1]}, {s[2], s[3]}};
#pragma unroll
  for (int i = 4; i < kCount; i += 4) {
#pragma unroll
    for (int e = 0; e < 4; ++e) top[e / 2][e % 2] = fmaxf(top[e / 2][e % 2], s[i + e]);
  }
  float offset[2];
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    float m = fmaxf(top[r][0], top[r][1]);
    m = fmaxf(m, __shfl_xor_sync(~0u, m, 1));
    m = fmaxf(m, __shfl_xor_sync(~0u, m, 2));
    const float old = state.max[r];
    const float rise = (m - old) * scale_log2;
    const bool moves = rise > 8.f;
    state.max[r] = moves ? m : old;
    alpha[r] = moves ? sm90::exp2_fast(-rise) : 1.f;
    offset[r] = state.max[r] * scale_log2;
  }
  float sums[2][2] = {};
#pragma unroll
  for (int i = 0; i < kCount; i += 4) {
#pragma unroll
    for (int e = 0; e < 4; ++e) {
      s[i + e] = sm90::exp2_fast(fmaf(s[i + e], scale_log2, -offset[e / 2]));
      sums[e / 2][e % 2] += s[i + e];
    }
  }
#pragma unroll
  for (int r = 0; r < 2; ++r) state.sum[r] = fmaf(state.sum[r], alpha[r], sums[r][0] + sums[r][1]);
}

/// Scores past the first `keys` become −∞.
template <int kCount>
__device__ __forceinline__ void attention_mask(float (&s)[kCount], int keys) {
  const int first = 2 * (threadIdx.x % 4);
#pragma unroll
  for (int i = 0; i < kCount; ++i) {
    if (i / 4 * 8 + i % 2 + first >= keys) s[i] = -INFINITY;
  }
}

/// What the row's plain output is multiplied by: 1/sum, the share that sinks leave, and the gate.
__device__ __forceinline__ float attention_row_factor(const AttentionParams& p, std::int64_t row, int head,
                                                      float max, float sum) {
  float factor = 1.f / sum;
  if (p.sinks != nullptr) {
    // exp(lse − logaddexp(lse, z)) = 1/(1 + exp(z − lse)), z = logsumexp(sinks).
    const float lse = fmaf(max, p.scale_log2, log2f(sum));  // base 2
    float rest = 0.f;
    for (int i = 0; i < p.n_sink; ++i) rest += exp2f(p.sinks[i * p.heads + head] * 1.44269504f - lse);
    factor = __fdividef(factor, 1.f + rest);
  }
  if (p.gate != nullptr) {
    const std::int64_t at = row * p.gate_pitch + head;
    const float logit = p.gate_is_bf16 ? __bfloat162float(static_cast<const __nv_bfloat16*>(p.gate)[at])
                                       : static_cast<const float*>(p.gate)[at];
    factor *= 1.f / (1.f + exp2f(logit * -1.44269504f));
  }
  return factor;
}

template <class Shape>
__device__ __forceinline__ void attention_store(const AttentionParams& p, const AttentionTile& tile,
                                                int group, const float (&o)[64],
                                                const RunningSoftmax& state) {
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32 % 4;
  const int first_row = Shape::Walk::query_row(p, tile) + 64 * group + 16 * warp;
  const int end = Shape::Walk::query_end(p, tile);
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    float sum = state.sum[r];
    sum += __shfl_xor_sync(~0u, sum, 1);
    sum += __shfl_xor_sync(~0u, sum, 2);
    const int row = first_row + lane / 4 + 8 * r;
    if (row >= end) continue;
    const std::int64_t packed_row = tile.sample->first + row;
    const float factor = attention_row_factor(p, packed_row, tile.head, state.max[r], sum);
    auto* to = reinterpret_cast<std::uint32_t*>(p.out + packed_row * p.out_pitch + tile.head * Shape::kDim) +
               lane % 4;
#pragma unroll
    for (int j = 0; j < 16; ++j)
      to[4 * j] = sm90::pack_bf16(o[4 * j + 2 * r] * factor, o[4 * j + 2 * r + 1] * factor);
  }
}

/// This warp is done with a tile.
__device__ __forceinline__ void attention_release(std::uint64_t* empty) {
  if (threadIdx.x % 32 == 0) sm90::barrier_arrive(empty);
}

/// s = q·kᵀ of this warpgroup's 64 rows; issued and committed, not awaited.
template <class Shape>
__device__ __forceinline__ void attention_issue_scores(float (&s)[Shape::kKeys / 2], std::uint64_t q,
                                                       std::uint64_t k) {
  constexpr std::uint32_t kQueryHalf = Shape::kQueries * 128, kKeyHalf = Shape::kKeys * 128;
  sm90::wgmma_ss<0>(s, q, k);
#pragma unroll
  for (int step = 1; step < 8; ++step) {
    sm90::wgmma_ss<1>(s, sm90::advance(q, step / 4 * kQueryHalf + step % 4 * 32),
                      sm90::advance(k, step / 4 * kKeyHalf + step % 4 * 32));
  }
  sm90::wgmma_commit();
}

/// o += P·v; issued and committed, not awaited.
template <class Shape>
__device__ __forceinline__ void attention_issue_values(float (&o)[64],
                                                       std::uint32_t (&weights)[Shape::kKeys / 4],
                                                       std::uint64_t v) {
#pragma unroll
  for (int step = 0; step < Shape::kKeys / 16; ++step) {
    const std::uint32_t* a = &weights[4 * step];
    sm90::wgmma_rs_n128<1, 1>(o, a[0], a[1], a[2], a[3], sm90::advance(v, step * 2048));
  }
  sm90::wgmma_commit();
}

/// Scores to weights: softmax and rounding, in the accumulator's layout.
template <int kCount>
__device__ __forceinline__ void attention_round(std::uint32_t (&weights)[kCount / 2],
                                                const float (&s)[kCount]) {
#pragma unroll
  for (int i = 0; i < kCount / 2; ++i) weights[i] = sm90::pack_bf16(s[2 * i], s[2 * i + 1]);
}

template <class Shape>
__device__ __forceinline__ void attention_consume(const AttentionParams& p, AttentionShared<Shape>& shared,
                                                  int group) {
  constexpr int kKeys = Shape::kKeys;
  constexpr int kTurn =
      2 * sm90::kWarpgroup;  // threads at a turn's barrier: one warpgroup arrives, one waits
  constexpr std::uint32_t kStageBytes = kKeys * 256;
  const int my_turn = 1 + group, next_turn = 1 + (group + 1) % Shape::kGroups;
  const std::uint64_t q = sm90::k_major_operand(shared.q[0][64 * group]);
  const std::uint64_t k = sm90::k_major_operand(shared.k[0]);
  const std::uint64_t v = sm90::mn_major_operand(shared.v[0], kKeys * 128);
  RingPosition<Shape::kStages> ring;  // of the V tile in hand; K is one tile ahead in the same order
  std::uint32_t q_parity = 0;

  float o[64];
  float s[kKeys / 2];
  std::uint32_t weights[kKeys / 4];
  if (group == Shape::kGroups - 1) sm90::named_arrive(next_turn, kTurn);  // the first warpgroup's first turn

  for (int index = blockIdx.x; index < p.tiles; index += gridDim.x) {
    typename Shape::Walk walk(p, attention_tile(p, index));
    RunningSoftmax state = {{-INFINITY, -INFINITY}, {0.f, 0.f}};
    float alpha[2];

    sm90::barrier_wait(&shared.q_full, q_parity);
    q_parity ^= 1;
    sm90::barrier_wait(&shared.k_full[ring.stage], ring.parity);
    sm90::wgmma_fence();
    attention_issue_scores<Shape>(s, q, sm90::advance(k, ring.stage * kStageBytes));
    sm90::wgmma_wait<0>();
    sm90::pin(s);
    attention_release(&shared.k_empty[ring.stage]);
    attention_mask(s, walk.remaining);
    attention_softmax(s, state, p.scale_log2, alpha);
    attention_round(weights, s);
#pragma unroll
    for (int i = 0; i < 64; ++i) o[i] = 0.f;

    if (!walk.last()) sm90::barrier_wait(&shared.k_full[ring.next().stage], ring.next().parity);
    while (!walk.last()) {
      walk.next();
      sm90::named_sync(my_turn, kTurn);
      sm90::pin(o);
      sm90::pin(weights);
      sm90::pin(s);
      sm90::wgmma_fence();
      attention_issue_scores<Shape>(s, q, sm90::advance(k, ring.next().stage * kStageBytes));
      sm90::barrier_wait(&shared.v_full[ring.stage], ring.parity);
      sm90::wgmma_fence();
      attention_issue_values<Shape>(o, weights, sm90::advance(v, ring.stage * kStageBytes));
      sm90::named_arrive(next_turn, kTurn);
      sm90::wgmma_wait<1>();
      sm90::pin(s);
      attention_release(&shared.k_empty[ring.next().stage]);
      if (Shape::Walk::kRagged && walk.remaining < kKeys) attention_mask(s, walk.remaining);
      attention_softmax(s, state, p.scale_log2, alpha);
      // The next K tile is awaited here because the branch keeps the assembler from moving the softmax behind
      // the wait for P·V, which it would do otherwise.
      if (!walk.last())
        sm90::barrier_wait(&shared.k_full[ring.next().next().stage], ring.next().next().parity);
      sm90::wgmma_wait<0>();
      sm90::pin(o);
      sm90::pin(weights);
      attention_release(&shared.v_empty[ring.stage]);
      ring = ring.next();
      attention_round(weights, s);
      // Multiplying by 1 changes nothing, so a warp may skip it without its rows depending on each other.
      if (__any_sync(~0u, alpha[0] != 1.f || alpha[1] != 1.f)) {
#pragma unroll
        for (int i = 0; i < 64; ++i) o[i] *= alpha[i % 4 / 2];
      }
    }
    attention_release(&shared.q_empty);

    sm90::barrier_wait(&shared.v_full[ring.stage], ring.parity);
    sm90::pin(o);
    sm90::pin(weights);
    sm90::wgmma_fence();
    attention_issue_values<Shape>(o, weights, sm90::advance(v, ring.stage * kStageBytes));
    sm90::wgmma_wait<0>();
    sm90::pin(o);
    attention_release(&shared.v_empty[ring.stage]);
    ring = ring.next();
    int again = index;  // hides that the tile was known before the loop: registers are short there
    asm volatile("" : "+r"(again));
    attention_store<Shape>(p, attention_tile(p, again), group, o, state);
  }
  if (group == 0) sm90::named_sync(my_turn, kTurn);  // takes the turn left over
}

// ---------------------------------------------------------------- the kernel

template <class Shape>
__global__ void __launch_bounds__(Shape::kThreads, 1)
    attention_kernel(const __grid_constant__ AttentionParams p) {
#ifdef MAGI_SM90A
  extern __shared__ __align__(1024) unsigned char attention_memory[];
  auto& shared = *reinterpret_cast<AttentionShared<Shape>*>(attention_memory);
  const int warpgroup = __shfl_sync(~0u, threadIdx.x / sm90::kWarpgroup, 0);

  if (threadIdx.x == 0) {
    constexpr int kReaders = 4 * Shape::kGroups;  // warps
    sm90::barrier_init(&shared.q_full, 1);
    sm90::barrier_init(&shared.q_empty, kReaders);
    for (int i = 0; i < Shape::kStages; ++i) {
      sm90::barrier_init(&shared.k_full[i], 1);
      sm90::barrier_init(&shared.v_full[i], 1);
      sm90::barrier_init(&shared.k_empty[i], kReaders);
      sm90::barrier_init(&shared.v_empty[i], kReaders);
    }
    sm90::fence_barrier_init();
  }
  __syncthreads();

  if (warpgroup == 0) {
    sm90::give_registers<Shape::kProducerRegisters>();
    if (threadIdx.x == 0) attention_produce<Shape>(p, shared);
  } else {
    sm90::take_registers<Shape::kConsumerRegisters>();
    attention_consume<Shape>(p, shared, warpgroup - 1);
  }
#endif
}

}  // namespace magi::cuda
