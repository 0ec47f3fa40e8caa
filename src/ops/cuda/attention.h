// SPDX-License-Identifier: Apache-2.0
// Launchers of the attention kernels. Plain pointers; all memory is the device's, except the list of samples.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>
#include <span>

#include "core/segments.h"
#include "ops/cuda/later_rows.h"

namespace magi {
struct WindowOptions;
}

namespace magi::cuda {

/// out[row, h] = softmax(scale·q·kᵀ)·v over the row's sample, × exp(lse − logaddexp(lse, logsumexp(sinks[:,
/// h]))) × σ(gate) (see `attention` in ops.h). Accumulation and softmax in f32.
struct AttentionArgs {
  const void* q = nullptr;   ///< [n, heads·head_dim]
  std::int64_t q_pitch = 0;  ///< elements from row to row
  const void* kv =
      nullptr;  ///< [m, 2·kv_heads·head_dim]: k heads, v heads; row for row with q, but for windows
  std::int64_t kv_pitch = 0;   ///< elements
  void* out = nullptr;         ///< [n, heads·head_dim], of q's dtype
  std::int64_t out_pitch = 0;  ///< elements
  LaterRows later;             ///< of the result, with the same pitch
  bool is_bf16 = true;         ///< else f32
  std::int64_t heads = 0;      ///< a multiple of kv_heads
  std::int64_t kv_heads = 0;
  std::int64_t head_dim = 0;          ///< at most 1024
  float scale = 0;                    ///< > 0
  bool causal = false;                ///< within each sample
  std::span<const RowRange> samples;  ///< rows outside every sample are neither read nor written
  const float* sinks = nullptr;       ///< [n_sink, heads] or null
  std::int64_t n_sink = 0;
  const void* gate = nullptr;   ///< [n, heads] logits, or [n, heads·head_dim] where gate_channels; or null
  std::int64_t gate_pitch = 0;  ///< elements
  bool gate_is_bf16 = false;    ///< else f32
  bool gate_channels = false;
};

/// Whether every part of the result begins at a multiple of `bytes`.
bool results_aligned(const AttentionArgs& args, std::uintptr_t bytes);

/// Enqueues the fastest kernel that takes the arguments. Throws Error where none does or the launch fails.
void attention(const AttentionArgs& args, cudaStream_t stream);

/// The refiner's windows (see `window_attention` in ops.h): q's rows are those of the window's blocks;
/// `samples` is one range, all rows of kv.
void window_attention(const AttentionArgs& args, const WindowOptions& window, cudaStream_t stream);

/// Partial results of q's rows over each range of kv's (see `attention_partials` in ops.h); `samples` is one
/// range, all rows of q. Neither sinks, gate nor out count.
void attention_partials(const AttentionArgs& args, std::span<const RowRange> parts, float* partials,
                        cudaStream_t stream);

/// Partial results in one piece of memory: [n, parts, heads, head_dim + 2].
struct AttentionPartials {
  const float* data = nullptr;
  std::int32_t parts = 0;
};
inline constexpr int kAttentionSources = 128;

/// out from partial results, merged in order, for the rows of the one sample; sinks and gate too. At most
/// kAttentionSources sources.
void merge_attention(const AttentionArgs& args, std::span<const AttentionPartials> sources,
                     cudaStream_t stream);

// ---------------------------------------------------------------- the kernels

/// Hopper (compute capability 9.0): bf16, head_dim 128, neither causal nor gated by channel; rows of q and
/// kv and out 16-byte aligned.
bool attention_sm90_takes(const AttentionArgs& args);
void attention_sm90(const AttentionArgs& args, cudaStream_t stream);
void window_attention_sm90(const AttentionArgs& args, const WindowOptions& window, cudaStream_t stream);
void attention_partials_sm90(const AttentionArgs& args, std::span<const RowRange> parts, float* partials,
                             cudaStream_t stream);

/// Any device since compute capability 8.0: tensor cores where bf16, head_dim a multiple of 8, at most 256,
/// and rows that begin at multiples of 16 bytes; else (f32 and all the rest) plain f32 arithmetic.
void attention_portable(const AttentionArgs& args, cudaStream_t stream);
void window_attention_portable(const AttentionArgs& args, const WindowOptions& window, cudaStream_t stream);
void attention_partials_portable(const AttentionArgs& args, std::span<const RowRange> parts, float* partials,
                                 cudaStream_t stream);

}  // namespace magi::cuda
