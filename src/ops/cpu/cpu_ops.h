// SPDX-License-Identifier: Apache-2.0
// The CPU backend: one source file per subject. Products go through gemm.h; everything else is plain C++ in
// f32, threads share out rows (or tiles of rows) only, so that results do not depend on their number.
#pragma once

#include "ops/ops.h"

namespace magi {

class CpuOps : public Ops {
 public:
  using Ops::Ops;

  Held held() const override { return *held_; }

  LinearWeight pack_linear(const Tensor& weight, int groups, DType dtype, const Tensor& bias) override;
  ExpertWeight pack_experts(const Tensor& gate, const Tensor& up, const Tensor& down, std::int64_t heads,
                            DType dtype) override;
  ConvWeight pack_conv(const Tensor& weight, const Tensor& bias, bool depthwise, bool transposed,
                       DType dtype) override;
  Tensor upload(const Tensor& host) override;
  Tensor download(const Tensor& device) override;
  void copy_in(Tensor destination, const Tensor& host) override;

 protected:
  void do_linear(const Tensor& x, const LinearWeight& w, const Segments& segments, Epilogue epilogue,
                 Tensor& y) override;
  void do_rms_norm(const Tensor& x, const NormWeight& w, const Segments& segments, Tensor& y) override;
  void do_embed(const Tensor& table, const Tensor& ids, Tensor& y) override;
  void do_set_time_features(Tensor& x, const Tensor& features, const Segments& segments) override;
  void do_cast(const Tensor& x, Tensor& y) override;
  void do_copy(Tensor& to, const Tensor& from) override;
  void do_add(Tensor& a, const Tensor& b) override;
  void do_mhc_site(Tensor& streams, const Tensor& branch, MhcCoefficients& state, const MhcWeight& w,
                   const NormWeight& pre_norm, const Segments& segments, Tensor& n) override;
  void do_mhc_finish(Tensor& streams, const Tensor& branch, const MhcCoefficients& state) override;
  void do_qk_norm_rope(Tensor& qkv, std::int64_t heads, std::int64_t kv_heads, const NormWeight& q_norm,
                       const NormWeight& k_norm, const Tensor& rope, const Segments& segments,
                       std::span<const HeadPart> parts) override;
  void do_attention(const Tensor& qkv, std::span<const RowRange> samples, const AttentionOptions& options,
                    std::span<const Tensor> y) override;
  void do_window_attention(const Tensor& q, const Tensor& kv, const WindowOptions& window,
                           const AttentionOptions& options, Tensor& y) override;
  void do_attention_partials(const Tensor& q, const Tensor& kv, std::span<const RowRange> parts,
                             const AttentionOptions& options, Tensor& partials) override;
  void do_merge_attention(std::span<const Tensor> partials, const AttentionOptions& options,
                          Tensor& y) override;
  void do_route(const Tensor& z, const Tensor& gate, const Tensor& bias, std::int64_t heads,
                std::int64_t top_k, float scale, Routing& routing) override;
  void do_experts(const Tensor& z, const Routing& routing, const ExpertWeight& w,
                  std::span<const Tensor> y) override;
  void do_causal_conv_silu(const Tensor& x, const Tensor& weight, Tensor& y) override;
  void do_gated_delta_rule(const Tensor& qkv, const Tensor& decay_input, const Tensor& beta_input,
                           const Tensor& a_log, const Tensor& dt_bias, std::int64_t key_heads,
                           std::int64_t value_heads, std::int64_t key_dim, std::int64_t value_dim,
                           Tensor& y) override;
  void do_gated_rms_norm(const Tensor& x, const Tensor& z, const Tensor& weight, float eps,
                         Tensor& y) override;
  void do_conv(const Tensor& x, const ConvWeight& w, const ConvOptions& options, Tensor& y) override;
  void do_replicate_time(const Tensor& x, std::int64_t front, std::int64_t back, Tensor& y) override;
  void do_channel_norm(const Tensor& x, const ChannelNorm& norm, Tensor& y) override;
  void do_snake(const Tensor& x, const Tensor& alpha, const Tensor& beta, Tensor& y) override;
  void do_upsample_nearest(const Tensor& x, Tensor& y) override;
  void do_interleave_time(const Tensor& x, Tensor& y) override;
  void do_unpatchify(const Tensor& x, std::int64_t patch, Tensor& y) override;
  void do_patchify(const Tensor& x, std::int64_t patch, Tensor& y) override;
  void do_to_pixels(const Tensor& x, Tensor& y) override;
  void do_tanh(const Tensor& x, Tensor& y) override;

 private:
  /// A dry run's weight or input: counted for as long as it lives.
  Tensor counted(const Tensor& tensor);

  std::shared_ptr<Held> held_ = std::make_shared<Held>();
};

}  // namespace magi
