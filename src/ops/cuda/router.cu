// SPDX-License-Identifier: Apache-2.0
// Router on Hopper: scores of 256 experts a head in f32 accuracy, sigmoid, bias, top k and weights in one
// persistent kernel; the scores never reach memory. z is bf16, so splitting each f32 element of the gate
// matrix into three bf16 terms makes every product exact; the terms are accumulated smallest first, so only
// the last 16 additions of a score round at its own size.
//
// Warps as in experts_sm90.cu: two consumer warpgroups of 64 rows, one producer warpgroup (warp 0: gate
// blocks, warps 2 and 3: rows of z). An item is 128 rows of one head.
#include <cfloat>

#include "ops/cuda/hopper.h"
#include "ops/cuda/launch.cuh"
#include "ops/cuda/moe.h"
#include "ops/cuda/moe_sm90.cuh"

#ifndef MAGI_SM90A
#pragma nv_diag_suppress 177  // elsewhere the kernel has no body, and its parts no use
#endif

namespace magi::cuda {
namespace moe {
namespace {

struct RouteArgs {
  const __nv_bfloat16* z;
  std::int64_t z_pitch;
  const unsigned char* gate;
  const float* bias;
  float scale;
  int* index;
  float* weight;
  std::int64_t rows;
  int heads, row_items;
};

struct RouteItem {
  int head;
  std::int64_t row;
};
__device__ __forceinline__ RouteItem route_item(const RouteArgs& a, int item) {
  return {item / a.row_items, static_cast<std::int64_t>(item % a.row_items) * kRows};
}

__device__ void stream_gate(Tiles& s, const RouteArgs& a) {
  Ring<kStages> ring;
  for (int item = blockIdx.x; item < a.heads * a.row_items; item += gridDim.x) {
    const unsigned char* from =
        a.gate + static_cast<std::int64_t>(item / a.row_items) * kGateBlocks * kBlockBytes;
    for (int b = 0; b < kGateBlocks; ++b, ring.next(), from += kBlockBytes) {
      barrier_wait(&s.empty[ring.stage], ring.parity ^ 1);
      barrier_expect(&s.full[ring.stage], kBlockBytes);
      load_bulk(&s.full[ring.stage], s.ring[ring.stage], from, kBlockBytes);
    }
  }
}

/// 32 rows of each warpgroup's 64; one warp.
__device__ void load_rows(Tiles& s, const RouteArgs& a, int half, int lane) {
  std::uint32_t parity = 1;
  for (int n = blockIdx.x; n < a.heads * a.row_items; n += gridDim.x, parity ^= 1) {
    const RouteItem item = route_item(a, n);
    const __nv_bfloat16* z = a.z + item.head * kDim;
    for (int group = 0; group < 2; ++group) {
      barrier_wait(&s.z_empty[group], parity);
      const int base = group * 64 + half * 32;
      for (int i = base; i < base + 32; ++i)
        if (item.row + i < a.rows) copy_row(s.z, i, z + (item.row + i) * a.z_pitch, lane);
      copies_announce(&s.z_full[group], lane);
    }
  }
}

/// A bias beyond this leaves too little of σ in σ + bias.
constexpr float kLargeBias = 1.0f;

/// σ of one column of the row, from its product anew; a quad of threads, 64 of K each.
__device__ __forceinline__ float sigma_anew(const RouteArgs& a, std::int64_t row, int head, int column,
                                            int quad) {
  const uint4* z =
      reinterpret_cast<const uint4*>(a.z + min(row, a.rows - 1) * a.z_pitch + head * kDim + quad * 64);
  const unsigned char* gate = a.gate + (static_cast<std::int64_t>(head) * kGateBlocks + quad) * kBlockBytes;
  float sum = 0;
#pragma unroll 1
  for (int i = 0; i < kTerms * 8; ++i) {  // small terms first
    const uint4 x = __ldg(z + i % 8), w = __ldg(reinterpret_cast<const uint4*>(
                                          gate + i / 8 * 4 * kBlockBytes + swizzled(column, i % 8)));
    const std::uint32_t xs[] = {x.x, x.y, x.z, x.w}, ws[] = {w.x, w.y, w.z, w.w};
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      sum = fmaf(__uint_as_float(xs[j] << 16), __uint_as_float(ws[j] << 16), sum);
      sum = fmaf(__uint_as_float(xs[j] & 0xffff0000u), __uint_as_float(ws[j] & 0xffff0000u), sum);
    }
  }
  sum += __shfl_xor_sync(0xffffffffu, sum, 1);
  sum += __shfl_xor_sync(0xffffffffu, sum, 2);
  return reciprocal_fast(1.0f + exp2_fast(sum * -1.4426950408889634f));
}

/// Top k of a row whose 256 scores lie in a quad of threads, 64 each (`score[4j + b + 2·kHalf]` is column 8j
/// + 2·quad + b).
template <int kHalf>
__device__ __forceinline__ void choose(float (&score)[128], const RouteArgs& a, std::int64_t row, int head,
                                       int quad) {
  int chosen[kTopK];
  float p[kTopK];
  float sum = 0;
#pragma unroll
  for (int k = 0; k < kTopK; ++k) {
    float best = score[2 * kHalf];
#pragma unroll
    for (int j = 0; j < 32; ++j)
      best = fmaxf(best, fmaxf(score[4 * j + 2 * kHalf], score[4 * j + 2 * kHalf + 1]));
    best = fmaxf(best, __shfl_xor_sync(0xffffffffu, best, 1));
    best = fmaxf(best, __shfl_xor_sync(0xffffffffu, best, 2));
    int at = kExperts;  // lowest column that has it, less 2·quad
#pragma unroll
    for (int j = 31; j >= 0; --j) {
      if (score[4 * j + 2 * kHalf + 1] == best) at = 8 * j + 1;
      if (score[4 * j + 2 * kHalf] == best) at = 8 * j;
    }
    int column = at + 2 * quad;
    column = min(column, __shfl_xor_sync(0xffffffffu, column, 1));
    column = min(column, __shfl_xor_sync(0xffffffffu, column, 2));
    const int mine = column - 2 * quad;
#pragma unroll
    for (int j = 0; j < 32; ++j) {
      if (mine == 8 * j) score[4 * j + 2 * kHalf] = -INFINITY;
      if (mine == 8 * j + 1) score[4 * j + 2 * kHalf + 1] = -INFINITY;
    }
    chosen[k] = column;
    const float bias = __ldg(a.bias + head * kExperts + column);
    p[k] = best - bias;
    if (__any_sync(0xffffffffu, fabsf(bias) > kLargeBias)) {
      const float anew = sigma_anew(a, row, head, column, quad);
      if (fabsf(bias) > kLargeBias) p[k] = anew;
    }
    sum += fabsf(p[k]);
  }
  if (row >= a.rows) return;
  const float factor = a.scale / fmaxf(sum, 1e-12f);
  const std::int64_t to = (row * a.heads + head) * kTopK;
#pragma unroll
  for (int k = 0; k < kTopK; ++k) {
    if (k % 4 != quad) continue;
    a.index[to + k] = chosen[k];
    a.weight[to + k] = p[k] * factor;
  }
}

__device__ __forceinline__ void score_rows(Tiles& s, const RouteArgs& a) {
  const int group = __shfl_sync(0xffffffffu, threadIdx.x / kWarpgroup, 0), warp = threadIdx.x / 32 % 4,
            lane = threadIdx.x % 32, quad = lane % 4;
  const std::uint64_t z = k_major_operand(s.z[0] + group * (kZTile / 2));
  const std::uint64_t ring_base = k_major_operand(s.ring[0]);
  Ring<kStages> ring;
  std::uint32_t z_parity = 0;
  float score[128];
  for (int n = blockIdx.x; n < a.heads * a.row_items; n += gridDim.x) {
    barrier_wait(&s.z_full[group], z_parity);
    z_parity ^= 1;
    int held = 0;
    for (int b = 0; b < kGateBlocks; ++b) {
      barrier_wait(&s.full[ring.stage], ring.parity);
      wgmma_fence();
#pragma unroll
      for (int step = 0; step < 4; ++step)
        wgmma_ss_n256(score, advance(z, (b % 4) * kZTile + step * 32),
                      advance(ring_base, ring.stage * kBlockBytes + step * 32), step > 0 || b > 0);
      wgmma_commit();
      if (b > 0) {
        wgmma_wait<1>();
        if (lane == 0) barrier_arrive(&s.empty[held]);
      }
      held = ring.stage;
      ring.next();
    }
    wgmma_wait<0>();
    if (lane == 0) {
      barrier_arrive(&s.empty[held]);
      barrier_arrive(&s.z_empty[group]);
    }
    pin(score);

    const RouteItem item = route_item(a, n);
    const float2* bias = reinterpret_cast<const float2*>(a.bias + item.head * kExperts) + quad;
#pragma unroll
    for (int j = 0; j < 32; ++j) {
      const float2 shift = __ldg(bias + 4 * j);
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const float sigma = reciprocal_fast(1.0f + exp2_fast(score[4 * j + i] * -1.4426950408889634f));
        // The clamp turns NaN and −∞ into a number, so that every round below finds a column.
        score[4 * j + i] = fmaxf(sigma + (i & 1 ? shift.y : shift.x), -FLT_MAX);
      }
    }
    const std::int64_t row = item.row + group * 64 + warp * 16 + lane / 4;
    choose<0>(score, a, row, item.head, quad);
    choose<1>(score, a, row + 8, item.head, quad);
  }
}

__global__ __launch_bounds__(kThreads, 1) void route_kernel(const __grid_constant__ RouteArgs a) {
#ifdef MAGI_SM90A
  extern __shared__ __align__(1024) unsigned char memory[];
  Tiles& s = *reinterpret_cast<Tiles*>(memory);
  share_roles([&] { s.init(); },
              [&](int warp, int lane) {
                if (warp == 0) {
                  if (lane == 0) stream_gate(s, a);
                } else if (warp >= 2) {
                  load_rows(s, a, warp - 2, lane);
                }
              },
              [&] { score_rows(s, a); });
#else
  __trap();  // built for sm_90 without the a
#endif
}

}  // namespace
}  // namespace moe

bool moe_sm90_takes(const MoeShape& shape) {
  return on_hopper() && shape.dim == moe::kDim && shape.hidden > 0 && shape.hidden % 64 == 0 &&
         shape.experts == moe::kExperts && shape.top_k == moe::kTopK &&
         shape.rows * shape.top_k < (1ll << 31);
}

void route(const void* z, std::int64_t z_pitch, const void* packed_router, const float* bias, float scale,
           int* index, float* weight, const MoeShape& shape, cudaStream_t stream) {
  moe::RouteArgs args{static_cast<const __nv_bfloat16*>(z),
                      z_pitch,
                      static_cast<const unsigned char*>(packed_router),
                      bias,
                      scale,
                      index,
                      weight,
                      shape.rows,
                      shape.heads,
                      static_cast<int>((shape.rows + moe::kRows - 1) / moe::kRows)};
  launch_persistent(moe::route_kernel, args, moe::kThreads, sizeof(moe::Tiles), stream, "route");
}

}  // namespace magi::cuda
