// SPDX-License-Identifier: Apache-2.0
#include <cmath>

#include "ops/cuda/attention.h"
#include "ops/cuda/cuda_ops.h"

namespace magi {
namespace {

cuda::AttentionArgs arguments(const Tensor& qkv, std::span<const RowRange> samples, const AttentionOptions& o,
                              Tensor& y) {
  cuda::AttentionArgs args;
  args.qkv = qkv.raw();
  args.qkv_pitch = qkv.pitch();
  args.out = y.raw();
  args.out_pitch = y.pitch();
  args.is_bf16 = qkv.dtype() == DType::bf16;
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
                           const AttentionOptions& options, Tensor& y) {
  if (qkv.dim(0) == 0) return;
  cuda::attention(arguments(qkv, samples, options, y), stream());
}

void CudaOps::do_window_attention(const Tensor& qkv, const WindowOptions& window,
                                  const AttentionOptions& options, Tensor& y) {
  const RowRange all{0, qkv.dim(0)};
  cuda::window_attention(arguments(qkv, {&all, 1}, options, y), window, stream());
}

}  // namespace magi
