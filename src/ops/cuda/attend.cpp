// SPDX-License-Identifier: Apache-2.0
#include <cmath>
#include <vector>

#include "ops/cuda/attention.h"
#include "ops/cuda/cuda_ops.h"

namespace magi {
namespace {

/// y: where the result goes; none for partial results.
cuda::AttentionArgs arguments(const Tensor& q, const Tensor& kv, std::span<const RowRange> samples,
                              const AttentionOptions& o, std::span<const Tensor> y) {
  cuda::AttentionArgs args;
  args.q = q.raw();
  args.q_pitch = q.pitch();
  args.kv = kv.raw();
  args.kv_pitch = kv.pitch();
  if (!y.empty()) {
    args.out = Tensor(y[0]).raw();
    args.out_pitch = y[0].pitch();
    args.later = cuda::later_rows(y);
  }
  args.is_bf16 = q.dtype() == DType::bf16;
  args.heads = o.heads;
  args.kv_heads = o.kv_heads;
  args.head_dim = o.head_dim;
  args.scale = o.scale != 0 ? o.scale : 1.0f / std::sqrt(static_cast<float>(o.head_dim));
  args.causal = o.causal;
  args.samples = samples;
  if (o.sinks.defined()) {
    args.sinks = o.sinks.data<float>();
    args.n_sink = o.sinks.dim(0);
  }
  if (o.gate.defined()) {
    args.gate = o.gate.raw();
    args.gate_pitch = o.gate.pitch();
    args.gate_is_bf16 = o.gate.dtype() == DType::bf16;
    args.gate_channels = o.gate.dim(1) != o.heads;
  }
  return args;
}

}  // namespace

void CudaOps::do_attention(const Tensor& qkv, std::span<const RowRange> samples,
                           const AttentionOptions& options, std::span<const Tensor> y) {
  if (qkv.dim(0) == 0) return;
  const std::int64_t q_size = options.heads * options.head_dim;
  const Tensor q = qkv.columns(0, q_size), kv = qkv.columns(q_size, qkv.dim(1) - q_size);
  cuda::attention(arguments(q, kv, samples, options, y), stream());
}

void CudaOps::do_window_attention(const Tensor& q, const Tensor& kv, const WindowOptions& window,
                                  const AttentionOptions& options, Tensor& y) {
  const RowRange keys{0, kv.dim(0)};
  cuda::window_attention(arguments(q, kv, {&keys, 1}, options, {&y, 1}), window, stream());
}

void CudaOps::do_attention_partials(const Tensor& q, const Tensor& kv, std::span<const RowRange> parts,
                                    const AttentionOptions& options, Tensor& partials) {
  const RowRange queries{0, q.dim(0)};
  cuda::attention_partials(arguments(q, kv, {&queries, 1}, options, {}), parts, partials.data<float>(),
                           stream());
}

void CudaOps::do_merge_attention(std::span<const Tensor> partials, const AttentionOptions& options,
                                 Tensor& y) {
  const RowRange rows{0, y.dim(0)};
  cuda::AttentionArgs args = arguments(y, y, {&rows, 1}, options, {&y, 1});
  std::vector<cuda::AttentionPartials> sources;
  for (const Tensor& t : partials) sources.push_back({t.data<float>(), static_cast<std::int32_t>(t.dim(1))});
  cuda::merge_attention(args, sources, stream());
}

}  // namespace magi
