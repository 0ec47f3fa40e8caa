// SPDX-License-Identifier: Apache-2.0
// Operations that the CUDA backend still lacks.
#include "ops/cuda/cuda_ops.h"

namespace magi {

ConvWeight CudaOps::pack_conv(const Tensor&, const Tensor&, bool, bool, DType) {
  fail("pack_conv: not yet on CUDA; use --device cpu");
}
void CudaOps::do_causal_conv_silu(const Tensor&, const Tensor&, Tensor&) {
  fail("causal_conv_silu: not yet on CUDA; use --device cpu");
}
void CudaOps::do_gated_delta_rule(const Tensor&, const Tensor&, const Tensor&, const Tensor&, const Tensor&,
                                  std::int64_t, std::int64_t, std::int64_t, std::int64_t, Tensor&) {
  fail("gated_delta_rule: not yet on CUDA; use --device cpu");
}
void CudaOps::do_gated_rms_norm(const Tensor&, const Tensor&, const Tensor&, float, Tensor&) {
  fail("gated_rms_norm: not yet on CUDA; use --device cpu");
}
void CudaOps::do_conv(const Tensor&, const ConvWeight&, const ConvOptions&, Tensor&) {
  fail("conv: not yet on CUDA; use --device cpu");
}
void CudaOps::do_replicate_time(const Tensor&, std::int64_t, std::int64_t, Tensor&) {
  fail("replicate_time: not yet on CUDA; use --device cpu");
}
void CudaOps::do_channel_norm(const Tensor&, const ChannelNorm&, Tensor&) {
  fail("channel_norm: not yet on CUDA; use --device cpu");
}
void CudaOps::do_snake(const Tensor&, const Tensor&, const Tensor&, Tensor&) {
  fail("snake: not yet on CUDA; use --device cpu");
}
void CudaOps::do_upsample_nearest(const Tensor&, Tensor&) {
  fail("upsample_nearest: not yet on CUDA; use --device cpu");
}
void CudaOps::do_interleave_time(const Tensor&, Tensor&) {
  fail("interleave_time: not yet on CUDA; use --device cpu");
}
void CudaOps::do_unpatchify(const Tensor&, std::int64_t, Tensor&) {
  fail("unpatchify: not yet on CUDA; use --device cpu");
}
void CudaOps::do_patchify(const Tensor&, std::int64_t, Tensor&) {
  fail("patchify: not yet on CUDA; use --device cpu");
}
void CudaOps::do_to_pixels(const Tensor&, Tensor&) {
  fail("to_pixels: not yet on CUDA; use --device cpu");
}
void CudaOps::do_tanh(const Tensor&, Tensor&) {
  fail("tanh: not yet on CUDA; use --device cpu");
}

}  // namespace magi
