// SPDX-License-Identifier: Apache-2.0
// Operations that the CUDA backend still lacks.
#include "ops/cuda/cuda_ops.h"

namespace magi {

LinearWeight CudaOps::pack_linear(const Tensor&, int, DType, const Tensor&) {
  fail("pack_linear: not yet on CUDA; use --device cpu");
}
ExpertWeight CudaOps::pack_experts(const Tensor&, const Tensor&, const Tensor&, std::int64_t, DType) {
  fail("pack_experts: not yet on CUDA; use --device cpu");
}
void CudaOps::do_linear(const Tensor&, const LinearWeight&, const Segments&, Epilogue, Tensor&) {
  fail("linear: not yet on CUDA; use --device cpu");
}
void CudaOps::do_rms_norm(const Tensor&, const NormWeight&, const Segments&, Tensor&) {
  fail("rms_norm: not yet on CUDA; use --device cpu");
}
void CudaOps::do_embed(const Tensor&, const Tensor&, Tensor&) {
  fail("embed: not yet on CUDA; use --device cpu");
}
void CudaOps::do_set_time_features(Tensor&, const Tensor&, const Segments&) {
  fail("set_time_features: not yet on CUDA; use --device cpu");
}
void CudaOps::do_cast(const Tensor&, Tensor&) {
  fail("cast: not yet on CUDA; use --device cpu");
}
void CudaOps::do_add(Tensor&, const Tensor&) {
  fail("add: not yet on CUDA; use --device cpu");
}
void CudaOps::do_mhc_site(Tensor&, const Tensor&, MhcCoefficients&, const MhcWeight&, const NormWeight&,
                          const Segments&, Tensor&) {
  fail("mhc_site: not yet on CUDA; use --device cpu");
}
void CudaOps::do_mhc_finish(Tensor&, const Tensor&, const MhcCoefficients&) {
  fail("mhc_finish: not yet on CUDA; use --device cpu");
}
void CudaOps::do_qk_norm_rope(Tensor&, std::int64_t, std::int64_t, const NormWeight&, const NormWeight&,
                              const Tensor&, const Segments&) {
  fail("qk_norm_rope: not yet on CUDA; use --device cpu");
}
void CudaOps::do_attention(const Tensor&, std::span<const RowRange>, const AttentionOptions&, Tensor&) {
  fail("attention: not yet on CUDA; use --device cpu");
}
void CudaOps::do_window_attention(const Tensor&, const WindowOptions&, const AttentionOptions&, Tensor&) {
  fail("window_attention: not yet on CUDA; use --device cpu");
}
void CudaOps::do_route(const Tensor&, const Tensor&, const Tensor&, std::int64_t, std::int64_t, float,
                       Routing&) {
  fail("route: not yet on CUDA; use --device cpu");
}
void CudaOps::do_experts(const Tensor&, const Routing&, const ExpertWeight&, Tensor&) {
  fail("experts: not yet on CUDA; use --device cpu");
}

}  // namespace magi
