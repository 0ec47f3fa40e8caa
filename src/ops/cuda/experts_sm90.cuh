// SPDX-License-Identifier: Apache-2.0
// What the expert FFN's two Hopper kernels share (bf16 weights, NVFP4 weights): arguments and launch, the
// ring that hands work items to warps, the producer warps' roles, and the activation.
#pragma once

#include "ops/cuda/launch.cuh"
#include "ops/cuda/moe_sm90.cuh"

namespace magi::cuda::moe {

inline constexpr int kItemSlots = 4;
inline constexpr int kItemReaders =
    kConsumerWarps + 3;  ///< the consumers, who streams weights, two who gather rows

struct ExpertsArgs {
  const __nv_bfloat16* z;
  std::int64_t z_pitch;
  const unsigned char* weights;  ///< of the first head's experts
  std::int64_t expert_bytes;
  const int* order;
  const int4* items;
  const int* head_items;
  int* cursor;
  __nv_bfloat16* expanded;
  std::int64_t slots;  ///< N·k, a head
  int first_head, last_head, experts, top_k, chunks;

  __device__ __forceinline__ const unsigned char* expert(const int4& item) const {
    return weights + (item.x - first_head * experts) * expert_bytes;
  }
};

/// Runs `kernel` over all items of heads [first_head, first_head + head_count).
inline void launch_experts(void (*kernel)(ExpertsArgs), std::size_t shared_bytes, const void* z,
                           std::int64_t z_pitch, const void* weights, std::int64_t expert_bytes,
                           const SortedRouting& sorted, void* expanded, int first_head, int head_count,
                           const MoeShape& shape, cudaStream_t stream, const char* what) {
  const ExpertsArgs args{static_cast<const __nv_bfloat16*>(z),
                         z_pitch,
                         static_cast<const unsigned char*>(weights),
                         expert_bytes,
                         sorted.order,
                         sorted.items,
                         sorted.head_items,
                         sorted.cursor,
                         static_cast<__nv_bfloat16*>(expanded),
                         shape.rows * shape.top_k,
                         first_head,
                         first_head + head_count,
                         shape.experts,
                         shape.top_k,
                         shape.hidden / kChunk};
  check_cuda(cudaMemsetAsync(sorted.cursor, 0, sizeof(int), stream), what);
  launch_persistent(kernel, args, kThreads, shared_bytes, stream, what);
}

/// Work items on their way from the warp that fetches them to all others.
struct ItemRing {
  std::uint64_t full[kItemSlots], empty[kItemSlots];
  int4 item[kItemSlots];

  __device__ __forceinline__ void init() {
    for (int i = 0; i < kItemSlots; ++i) {
      barrier_init(&full[i], 1);
      barrier_init(&empty[i], kItemReaders);
    }
  }
};

/// Reader of the ring: a whole warp, or one thread. next is false after the last item.
template <bool kWarp>
struct Items {
  ItemRing& ring;
  int slot = 0;
  std::uint32_t parity = 0;
  __device__ __forceinline__ bool next(int4& item) {
    barrier_wait(&ring.full[slot], parity);
    // One thread reads and gives the slot back; the others have its word.
    if (!kWarp || threadIdx.x % 32 == 0) {
      item = ring.item[slot];
      barrier_arrive(&ring.empty[slot]);
    }
    if constexpr (kWarp) {
      item.x = __shfl_sync(0xffffffffu, item.x, 0);
      item.y = __shfl_sync(0xffffffffu, item.y, 0);
      item.z = __shfl_sync(0xffffffffu, item.z, 0);
      item.w = __shfl_sync(0xffffffffu, item.w, 0);
    }
    if (++slot == kItemSlots) {
      slot = 0;
      parity ^= 1;
    }
    return item.z > 0;
  }
};

/// Hands out the items of heads [first_head, last_head) whose number of rows `takes`, in turn, first come
/// first served; one thread.
template <typename Takes>
__device__ void hand_out(ItemRing& ring, const ExpertsArgs& a, const Takes& takes) {
  const int begin = a.head_items[a.first_head], end = a.head_items[a.last_head];
  for (int n = 0;; ++n) {
    const int slot = n % kItemSlots;
    barrier_wait(&ring.empty[slot], ((n / kItemSlots) & 1) ^ 1);
    int4 item;
    do {
      const int at = begin + atomicAdd(a.cursor, 1);
      item = at < end ? a.items[at] : make_int4(0, 0, 0, 0);
    } while (item.z > 0 && !takes(item.z));
    ring.item[slot] = item;
    barrier_arrive(&ring.full[slot]);
    if (item.z == 0) return;
  }
}

/// A block's life: `stream()` by the first thread of the producer warpgroup, hand_out of what `takes` by its
/// second warp's, `gather(half, lane)` by its third and fourth warps.
template <typename Shared, typename Takes, typename Stream, typename Gather, typename Consume>
__device__ __forceinline__ void share_expert_roles(Shared& s, const ExpertsArgs& a, const Takes& takes,
                                                   const Stream& stream, const Gather& gather,
                                                   const Consume& consume) {
  share_roles([&] { s.init(); },
              [&](int warp, int lane) {
                if (warp >= 2)
                  gather(warp - 2, lane);
                else if (warp == 1 && lane == 0)
                  hand_out(s.items, a, takes);
                else if (lane == 0)
                  stream();
              },
              consume);
}

__device__ __forceinline__ float min_nan(float a, float b) {
  float r;
  asm("min.NaN.f32 %0, %1, %2;" : "=f"(r) : "f"(a), "f"(b));
  return r;
}
__device__ __forceinline__ float max_nan(float a, float b) {
  float r;
  asm("max.NaN.f32 %0, %1, %2;" : "=f"(r) : "f"(a), "f"(b));
  return r;
}

__device__ __forceinline__ float swiglu7(float a, float b) {
  a = min_nan(a, 7.0f);
  b = min_nan(max_nan(b, -7.0f), 7.0f);
  float e = exp2_fast(a * (-1.702f * 1.4426950408889634f));
  return fmaf(a, b, a) * reciprocal_fast(1.0f + e);
}

}  // namespace magi::cuda::moe
