// SPDX-License-Identifier: Apache-2.0
// A thread's part of the softmax and of the output in the accumulator layout that wgmma and mma.sync share:
// for each 8 columns j, x[4j], x[4j+1] at row (t%32)/4 of the warp's 16, columns 8j + 2·(t%4) + {0,1}, and
// x[4j+2], x[4j+3] eight rows below.
#pragma once

#include <cmath>
#include <cstdint>

#include "ops/cuda/attention_walk.cuh"
#include "ops/cuda/sm90.cuh"

namespace magi::cuda {

/// Rows r and r + 8 of the warp's 16. max in units of q·k; sum over the thread's own columns, the four
/// threads of a row are added at the end.
struct RunningSoftmax {
  float max[2];
  float sum[2];
};

/// Replaces scores s by exp2((s − max)·scale); returns in `alpha` the factors that the accumulated output
/// needs. A row's maximum moves only when it rises by more than 2^8, which spares most rescalings of the
/// output: sums stay far inside f32, relative errors stay the same, and the choice is the row's own. In a
/// row's first tile at least one score is finite.
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

/// Multiplying by 1 changes nothing, so a warp may skip it without its rows depending on each other.
template <int kCount>
__device__ __forceinline__ void attention_rescale(float (&o)[kCount], const float (&alpha)[2]) {
  if (!__any_sync(~0u, alpha[0] != 1.f || alpha[1] != 1.f)) return;
#pragma unroll
  for (int i = 0; i < kCount; ++i) o[i] *= alpha[i % 4 / 2];
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

/// Rounds softmax's values to the A operand of P·V.
template <int kCount>
__device__ __forceinline__ void attention_round(std::uint32_t (&weights)[kCount / 2],
                                                const float (&s)[kCount]) {
#pragma unroll
  for (int i = 0; i < kCount / 2; ++i) weights[i] = sm90::pack_bf16(s[2 * i], s[2 * i + 1]);
}

/// σ of a gate logit.
__device__ __forceinline__ float attention_gate(const AttentionParams& p, std::int64_t at) {
  const float logit = p.gate_is_bf16 ? __bfloat162float(static_cast<const __nv_bfloat16*>(p.gate)[at])
                                     : static_cast<const float*>(p.gate)[at];
  return 1.f / (1.f + exp2f(logit * -1.44269504f));
}

/// What the row's plain output is multiplied by: 1/sum, the share that sinks leave, and the head's gate.
/// `max` in units of q·k.
__device__ __forceinline__ float attention_row_factor(const AttentionParams& p, std::int64_t row, int head,
                                                      float max, float sum) {
  float factor = 1.f / sum;
  if (p.sinks != nullptr) {
    // exp(lse − logaddexp(lse, z)) = 1/(1 + exp(z − lse)), z = logsumexp(sinks).
    const float lse = fmaf(max, p.scale_log2, log2f(sum));  // base 2
    float rest = 0.f;
    for (int i = 0; i < p.n_sink; ++i) rest += exp2f(p.sinks[i * p.heads + head] * 1.44269504f - lse);
    factor *= 1.f / (1.f + rest);
  }
  if (p.gate != nullptr && !p.gate_channels) factor *= attention_gate(p, row * p.gate_pitch + head);
  return factor;
}

/// Where the partial result of a row of the sample goes.
__device__ __forceinline__ float* attention_partial(const AttentionParams& p, int row, int part, int head) {
  return p.partials +
         ((static_cast<std::int64_t>(row) * p.part_count + part) * p.heads + head) * (p.head_dim + 2);
}

/// Writes a warp's 16 rows, `first_row` on in the sample, as far as `end`. Not kWhole: heads may be smaller
/// than the accumulators.
template <class Walk, bool kWhole = true, int kCount>
__device__ __forceinline__ void attention_store(const AttentionParams& p, const AttentionTile& tile,
                                                int first_row, int end, const float (&o)[kCount],
                                                const RunningSoftmax& state) {
  const int dim = kWhole ? 2 * kCount : p.head_dim, lane = threadIdx.x % 32;
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    float sum = state.sum[r];
    sum += __shfl_xor_sync(~0u, sum, 1);
    sum += __shfl_xor_sync(~0u, sum, 2);
    const int row = first_row + lane / 4 + 8 * r;
    if constexpr (Walk::kPartial) {
      if (row >= end) continue;
      float* to = attention_partial(p, row, Walk::index(p, tile), tile.head);
#pragma unroll
      for (int j = 0; j < kCount / 4; ++j)
        if (8 * j < dim)
          *reinterpret_cast<float2*>(to + 8 * j + 2 * (lane % 4)) =
              make_float2(o[4 * j + 2 * r], o[4 * j + 2 * r + 1]);
      if (lane % 4 == 0) *reinterpret_cast<float2*>(to + dim) = make_float2(state.max[r] * p.scale_log2, sum);
      continue;
    }
    // Lanes of a row trade, so that each stores 16 bytes; those past the end take part.
    const std::int64_t packed_row = tile.sample->first + min(row, end - 1);
    const float factor = attention_row_factor(p, packed_row, tile.head, state.max[r], sum);
    const int column = tile.head * dim;
    auto* to = attention_result<__nv_bfloat16>(p, packed_row) + column + 8 * (lane % 4);
#pragma unroll
    for (int part = 0; part < kCount / 16; ++part) {
      std::uint32_t words[4];
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int j = 4 * part + i;
        float x = o[4 * j + 2 * r] * factor, y = o[4 * j + 2 * r + 1] * factor;
        if (p.gate_channels && 8 * j < dim) {
          const std::int64_t at = packed_row * p.gate_pitch + column + 8 * j + 2 * (lane % 4);
          x *= attention_gate(p, at);
          y *= attention_gate(p, at + 1);
        }
        words[i] = sm90::pack_bf16(x, y);
      }
      sm90::transpose_quad(words);
      if (row < end && 32 * part + 8 * (lane % 4) < dim)
        *reinterpret_cast<uint4*>(to + 32 * part) = make_uint4(words[0], words[1], words[2], words[3]);
    }
  }
}

}  // namespace magi::cuda
