// SPDX-License-Identifier: Apache-2.0
// Attention from partial results: a warp takes a row of one head and merges its parts in order.
#include <algorithm>

#include "ops/cuda/attention_launch.cuh"
#include "ops/cuda/attention_row.cuh"

namespace magi::cuda {
namespace {

constexpr int kWarps = 8;         ///< a block
constexpr int kMaxChannels = 32;  ///< a lane; head_dim is at most 1024

struct MergeParams {
  AttentionParams attention;
  AttentionPartials sources[kAttentionSources];
  std::int32_t count;
  std::int32_t rows;
};

template <class T, int kChannels>
__global__ void __launch_bounds__(32 * kWarps) merge_kernel(const __grid_constant__ MergeParams m) {
  const AttentionParams& p = m.attention;
  const std::int64_t item = static_cast<std::int64_t>(blockIdx.x) * kWarps + threadIdx.x / 32;
  if (item >= static_cast<std::int64_t>(m.rows) * p.heads) return;
  const int lane = threadIdx.x % 32, head = static_cast<int>(item % p.heads);
  const std::int64_t row = item / p.heads;
  float sum[kChannels] = {}, top = -INFINITY, total = 0.f;
  for (int s = 0; s < m.count; ++s) {
    const AttentionPartials source = m.sources[s];
    for (int part = 0; part < source.parts; ++part) {
      const float* from = source.data + ((row * source.parts + part) * p.heads + head) * (p.head_dim + 2);
      const float high = fmaxf(top, from[p.head_dim]);
      const float before = exp2f(top - high), now = exp2f(from[p.head_dim] - high);
      top = high;
      total = fmaf(total, before, from[p.head_dim + 1] * now);
#pragma unroll
      for (int i = 0; i < kChannels; ++i)
        if (lane + 32 * i < p.head_dim) sum[i] = fmaf(sum[i], before, from[lane + 32 * i] * now);
    }
  }
  const float factor = attention_row_factor(p, row, head, top, total);
  T* to = static_cast<T*>(p.out) + row * p.out_pitch + head * p.head_dim;
#pragma unroll
  for (int i = 0; i < kChannels; ++i) {
    const int d = lane + 32 * i;
    if (d >= p.head_dim) break;
    float x = sum[i] * factor;
    if (p.gate_channels) x *= attention_gate(p, row * p.gate_pitch + head * p.head_dim + d);
    to[d] = static_cast<T>(x);
  }
}

}  // namespace

void merge_attention(const AttentionArgs& args, std::span<const AttentionPartials> sources,
                     cudaStream_t stream) {
  require(sources.size() <= kAttentionSources && args.head_dim <= 32 * kMaxChannels,
          "merging attention: {} sources of head size {}; at most {} of {}", sources.size(), args.head_dim,
          kAttentionSources, 32 * kMaxChannels);
  MergeParams params{};
  params.attention = attention_params(args);
  params.attention.scale_log2 = 1;  // partial results hold their highest logit in base 2
  std::copy(sources.begin(), sources.end(), params.sources);
  params.count = static_cast<int>(sources.size());
  params.rows = static_cast<int>(args.samples[0].size());
  const auto blocks = static_cast<unsigned>((params.rows * args.heads + kWarps - 1) / kWarps);
  const auto launch = [&](auto kernel) { kernel<<<blocks, 32 * kWarps, 0, stream>>>(params); };
  if (args.head_dim <= 128) {
    args.is_bf16 ? launch(merge_kernel<__nv_bfloat16, 4>) : launch(merge_kernel<float, 4>);
  } else {
    args.is_bf16 ? launch(merge_kernel<__nv_bfloat16, kMaxChannels>)
                 : launch(merge_kernel<float, kMaxChannels>);
  }
  check_launch("merging attention");
}

}  // namespace magi::cuda
