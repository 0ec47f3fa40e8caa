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

#include "ops/cuda/attention_launch.cuh"
#include "ops/cuda/attention_row.cuh"
#include "ops/cuda/sm90.cuh"
#include "ops/cuda/tensor_map.h"

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
  std::int32_t key_tile[Shape::kStages];  ///< about each K tile, from the producer: its keys, negative for a
                                          ///< query tile's last
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

/// Where a producer puts K or V tiles.
template <class Shape>
struct AttentionTarget {
  std::uint64_t* full;
  std::uint64_t* empty;
  __nv_bfloat16 (*stages)[2][Shape::kKeys][64];
  RingPosition<Shape::kStages> ring;

  __device__ __forceinline__ void wait() { sm90::barrier_wait(&empty[ring.stage], ring.parity ^ 1); }
  /// Rows from `row` on; `column` is the head's first column in kv.
  __device__ __forceinline__ void load(const CUtensorMap* map, int column, int row) {
    sm90::barrier_expect(&full[ring.stage], sizeof(stages[0]));
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      sm90::load_box(map, &full[ring.stage], stages[ring.stage][half], column + 64 * half, row);
    }
    ring = ring.next();
  }
};

/// K runs one tile ahead of V, as the consumers use them.
template <class Shape>
__device__ __forceinline__ void attention_produce(const AttentionParams& p, AttentionShared<Shape>& shared) {
  AttentionTarget<Shape> k{shared.k_full, shared.k_empty, shared.k, {}};
  AttentionTarget<Shape> v{shared.v_full, shared.v_empty, shared.v, {}};
  std::uint32_t q_parity = 0;
  for (int index = blockIdx.x; index < p.tiles; index += gridDim.x) {
    const AttentionTile tile = attention_tile(p, index);
    const CUtensorMap* keys = &tile.sample->keys;
    const int k_column = tile.kv_head * Shape::kDim;
    const int v_column = k_column + p.kv_heads * Shape::kDim;
    typename Shape::Walk walk(p, tile);
    const auto load_k = [&] {
      k.wait();
      const int count = min(walk.remaining, Shape::kKeys);
      shared.key_tile[k.ring.stage] = walk.last() ? -count : count;  // ordered by the barrier that follows
      k.load(keys, k_column, walk.row);
    };

    load_k();
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
        load_k();
      }
      v.wait();
      v.load(keys, v_column, row);
      if (last) break;
    }
  }
}

// ---------------------------------------------------------------- consumers

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

/// Waits for a K tile; returns the producer's note on it.
template <class Shape, class Ring>
__device__ __forceinline__ int attention_next_tile(const AttentionShared<Shape>& shared, Ring ring) {
  sm90::barrier_wait(&shared.k_full[ring.stage], ring.parity);
  // The lane that releases the tile reads, so that its reading is ordered before the release.
  const int note = threadIdx.x % 32 == 0 ? shared.key_tile[ring.stage] : 0;
  return __shfl_sync(~0u, note, 0);
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
    RunningSoftmax state = {{-INFINITY, -INFINITY}, {0.f, 0.f}};
    float alpha[2];

    sm90::barrier_wait(&shared.q_full, q_parity);
    q_parity ^= 1;
    int key_tile = attention_next_tile(shared, ring);
    sm90::wgmma_fence();
    attention_issue_scores<Shape>(s, q, sm90::advance(k, ring.stage * kStageBytes));
    sm90::wgmma_wait<0>();
    sm90::pin(s);
    attention_release(&shared.k_empty[ring.stage]);
    attention_mask(s, abs(key_tile));
    attention_softmax(s, state, p.scale_log2, alpha);
    attention_round(weights, s);
#pragma unroll
    for (int i = 0; i < 64; ++i) o[i] = 0.f;

    bool more = key_tile > 0;
    if (more) key_tile = attention_next_tile(shared, ring.next());
    while (more) {
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
      if (Shape::Walk::kRagged && abs(key_tile) < kKeys) attention_mask(s, abs(key_tile));
      attention_softmax(s, state, p.scale_log2, alpha);
      // The next K tile is awaited here because the branch keeps the assembler from moving the softmax behind
      // the wait for P·V, which it would do otherwise.
      more = key_tile > 0;
      if (more) key_tile = attention_next_tile(shared, ring.next().next());
      sm90::wgmma_wait<0>();
      sm90::pin(o);
      sm90::pin(weights);
      attention_release(&shared.v_empty[ring.stage]);
      ring = ring.next();
      attention_round(weights, s);
      attention_rescale(o, alpha);
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
    const AttentionTile tile = attention_tile(p, again);
    attention_store<typename Shape::Walk>(
        p, tile, Shape::Walk::query_row(p, tile) + 64 * group + 16 * (threadIdx.x / 32 % 4),
        Shape::Walk::query_end(p, tile), o, state);
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

/// For attention_launch.cuh.
template <class Shape>
struct HopperAttention {
  static constexpr int kQueries = Shape::kQueries;

  static AttentionSample sample(const AttentionArgs& args, RowRange queries, RowRange keys) {
    const auto map = [](const void* data, std::int64_t pitch, RowRange rows, std::int64_t columns,
                        int box_rows) {
      return bf16_tensor_map(static_cast<const __nv_bfloat16*>(data) + rows.first * pitch, rows.size(),
                             columns, pitch, box_rows);
    };
    AttentionSample sample{};
    sample.queries = map(args.q, args.q_pitch, queries, args.heads * Shape::kDim, Shape::kQueries);
    sample.keys = map(args.kv, args.kv_pitch, keys, 2 * args.kv_heads * Shape::kDim, Shape::kKeys);
    return sample;
  }

  static void launch(const AttentionParams& params, cudaStream_t stream) {
    launch_persistent(attention_kernel<Shape>, params, Shape::kThreads, sizeof(AttentionShared<Shape>),
                      stream, "attention");
  }
};

}  // namespace magi::cuda
