// SPDX-License-Identifier: Apache-2.0
// Counting sort of the routing by (head, expert), stable and without atomics that order anything: within a
// block of 256 tokens each expert has a bit mask of its tokens, whose population counts are the histogram
// and, below a token's bit, its rank. Then the table of work items of the experts' kernel.
#include "ops/cuda/launch.cuh"
#include "ops/cuda/moe.h"

namespace magi::cuda {
namespace moe {
namespace {

constexpr int kBlockTokens = 256;
constexpr int kMaskWords = kBlockTokens / 32;
constexpr int kMaxExperts = 1024;

struct SortArgs {
  const int* index;
  SortedRouting sorted;
  std::int64_t rows;
  int heads, experts, top_k, blocks;
};

__device__ __forceinline__ int& block_start(const SortArgs& a, int head, int block, int expert) {
  return a.sorted.block_start[(static_cast<std::int64_t>(head) * a.blocks + block) * a.experts + expert];
}

/// mask[expert][word]: which of the block's tokens chose the expert.
__device__ const int* fill_masks(const SortArgs& a, std::uint32_t* mask, int head, std::int64_t token) {
  for (int i = threadIdx.x; i < a.experts * kMaskWords; i += kBlockTokens) mask[i] = 0;
  __syncthreads();
  const int* chosen = a.index + (token * a.heads + head) * a.top_k;
  if (token < a.rows)
    for (int k = 0; k < a.top_k; ++k)
      atomicOr(&mask[chosen[k] * kMaskWords + threadIdx.x / 32], 1u << (threadIdx.x % 32));
  __syncthreads();
  return chosen;
}

__global__ __launch_bounds__(kBlockTokens) void count_kernel(SortArgs a) {
  extern __shared__ std::uint32_t mask[];
  const int head = blockIdx.y, block = blockIdx.x;
  fill_masks(a, mask, head, static_cast<std::int64_t>(block) * kBlockTokens + threadIdx.x);
  for (int e = threadIdx.x; e < a.experts; e += kBlockTokens) {
    int count = 0;
    for (int w = 0; w < kMaskWords; ++w) count += __popc(mask[e * kMaskWords + w]);
    block_start(a, head, block, e) = count;
  }
}

/// Exclusive sum over the block's threads; `sums` has room for 32 values.
__device__ int exclusive_sum(int value, int* sums, int* total) {
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, warps = blockDim.x / 32;
  int sum = value;
  for (int d = 1; d < 32; d *= 2) {
    int below = __shfl_up_sync(0xffffffffu, sum, d);
    if (lane >= d) sum += below;
  }
  __syncthreads();
  if (lane == 31) sums[warp] = sum;
  __syncthreads();
  int before = 0, all = 0;
  for (int w = 0; w < warps; ++w) {
    if (w < warp) before += sums[w];
    all += sums[w];
  }
  *total = all;
  return before + sum - value;
}

/// Counts → first places, per head: within an expert by block, then by expert. One thread an expert.
__global__ __launch_bounds__(kMaxExperts) void scan_kernel(SortArgs a) {
  __shared__ int sums[32];
  const int head = blockIdx.x, e = threadIdx.x;
  int count = 0;
  if (e < a.experts) {
    constexpr int kAhead = 16;
    for (int first = 0; first < a.blocks; first += kAhead) {
      int value[kAhead];
#pragma unroll
      for (int i = 0; i < kAhead; ++i)
        value[i] = first + i < a.blocks ? block_start(a, head, first + i, e) : 0;
#pragma unroll
      for (int i = 0; i < kAhead; ++i) {
        if (first + i < a.blocks) block_start(a, head, first + i, e) = count;
        count += value[i];
      }
    }
  }
  int total;
  const int start = exclusive_sum(count, sums, &total);
  int* starts = a.sorted.expert_start + head * (a.experts + 1);
  if (e < a.experts) starts[e] = start;
  if (e == 0) starts[a.experts] = total;
  exclusive_sum((count + kMoeItemRows - 1) / kMoeItemRows, sums, &total);
  if (e == 0) a.sorted.head_items[head + 1] = total;  // the head's number until items_kernel sums them up
}

/// Writes each head's items; block h. Reads the other heads' numbers, so the sums are written by
/// sum_items_kernel.
__global__ __launch_bounds__(kMaxExperts) void items_kernel(SortArgs a) {
  __shared__ int sums[32];
  const int head = blockIdx.x, e = threadIdx.x;
  int base = 0;
  for (int h = 0; h < head; ++h) base += a.sorted.head_items[h + 1];
  const int* starts = a.sorted.expert_start + head * (a.experts + 1);
  const int start = e < a.experts ? starts[e] : 0;
  const int count = e < a.experts ? starts[e + 1] - start : 0;
  int total;
  base += exclusive_sum((count + kMoeItemRows - 1) / kMoeItemRows, sums, &total);
  for (int row = 0; row < count; row += kMoeItemRows)
    a.sorted.items[base++] =
        make_int4(head * a.experts + e, start + row, min(kMoeItemRows, count - row), head);
}

__global__ void sum_items_kernel(SortArgs a) {
  a.sorted.head_items[0] = 0;
  for (int h = 0; h < a.heads; ++h) a.sorted.head_items[h + 1] += a.sorted.head_items[h];
}

__global__ __launch_bounds__(kBlockTokens) void place_kernel(SortArgs a) {
  extern __shared__ std::uint32_t mask[];
  const int head = blockIdx.y, block = blockIdx.x, word = threadIdx.x / 32;
  const std::int64_t token = static_cast<std::int64_t>(block) * kBlockTokens + threadIdx.x;
  const int* chosen = fill_masks(a, mask, head, token);
  if (token >= a.rows) return;
  const int* starts = a.sorted.expert_start + head * (a.experts + 1);
  for (int k = 0; k < a.top_k; ++k) {
    const int e = chosen[k];
    int place = starts[e] + block_start(a, head, block, e);
    for (int w = 0; w < word; ++w) place += __popc(mask[e * kMaskWords + w]);
    place += __popc(mask[e * kMaskWords + word] & ((1u << (threadIdx.x % 32)) - 1));
    a.sorted.order[head * a.rows * a.top_k + place] = static_cast<int>(token * a.top_k + k);
  }
}

std::int64_t blocks_of(const MoeShape& shape) {
  return (shape.rows + kBlockTokens - 1) / kBlockTokens;
}

/// Lays the tables out from `base`; returns the bytes they take.
std::size_t lay_out(const MoeShape& s, unsigned char* base, SortedRouting* sorted) {
  std::size_t at = 0;
  auto take = [&](auto*& p, std::int64_t count) {
    p = reinterpret_cast<std::remove_reference_t<decltype(p)>>(base + at);
    at += (static_cast<std::size_t>(count) * sizeof(*p) + 255) / 256 * 256;
  };
  const std::int64_t slots = s.rows * s.top_k;
  take(sorted->order, s.heads * slots);
  take(sorted->items, s.heads * (slots / kMoeItemRows + s.experts));
  take(sorted->head_items, s.heads + 1);
  take(sorted->cursor, 1);
  take(sorted->expert_start, static_cast<std::int64_t>(s.heads) * (s.experts + 1));
  take(sorted->block_start, s.heads * blocks_of(s) * s.experts);
  return at;
}

}  // namespace
}  // namespace moe

std::size_t moe_workspace_bytes(const MoeShape& shape) {
  SortedRouting sorted;
  return moe::lay_out(shape, nullptr, &sorted);
}

SortedRouting sort_routing(const int* index, void* workspace, const MoeShape& shape, cudaStream_t stream) {
  SortedRouting sorted;
  moe::lay_out(shape, static_cast<unsigned char*>(workspace), &sorted);
  const int blocks = static_cast<int>(moe::blocks_of(shape));
  moe::SortArgs args{index, sorted, shape.rows, shape.heads, shape.experts, shape.top_k, blocks};
  const dim3 grid(static_cast<unsigned>(blocks), static_cast<unsigned>(shape.heads));
  const std::size_t masks = sizeof(std::uint32_t) * shape.experts * moe::kMaskWords;
  if (blocks > 0) moe::count_kernel<<<grid, moe::kBlockTokens, masks, stream>>>(args);
  const int threads = (shape.experts + 31) / 32 * 32;
  moe::scan_kernel<<<shape.heads, threads, 0, stream>>>(args);
  moe::items_kernel<<<shape.heads, threads, 0, stream>>>(args);
  moe::sum_items_kernel<<<1, 1, 0, stream>>>(args);
  if (blocks > 0) moe::place_kernel<<<grid, moe::kBlockTokens, masks, stream>>>(args);
  check_launch("sort_routing");
  return sorted;
}

}  // namespace magi::cuda
