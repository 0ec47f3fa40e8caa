// SPDX-License-Identifier: Apache-2.0
// Every tensor of a layer, in one fixed order: what moves when a layer moves.
#pragma once

#include "model/preview.h"
#include "model/refiner.h"
#include "model/text_encoder.h"

namespace magi {

// visit(w, f) calls f(Tensor&) on each tensor of w, undefined ones too.

template <typename F>
void visit(Tensor& t, F&& f) {
  f(t);
}
template <typename F>
void visit(LinearWeight& w, F&& f) {
  f(w.data);
  f(w.bias);
}
template <typename F>
void visit(NormWeight& w, F&& f) {
  f(w.weight);
}
template <typename F>
void visit(ExpertWeight& w, F&& f) {
  f(w.gate);
  f(w.up);
  f(w.down);
  f(w.nvfp4);
}
template <typename F>
void visit(MhcWeight& w, F&& f) {
  visit(w.norm, f);
  f(w.phi);
  f(w.alpha);
  f(w.bias);
}
template <typename F>
void visit(AttentionWeights& w, F&& f) {
  visit(w.norm, f);
  visit(w.gate, f);
  visit(w.qkv, f);
  visit(w.proj, f);
  visit(w.q_norm, f);
  visit(w.k_norm, f);
  f(w.sinks);
}
template <typename F>
void visit(DenseMlpWeights& w, F&& f) {
  visit(w.up, f);
  visit(w.down, f);
}
template <typename F>
void visit(MoeWeights& w, F&& f) {
  for (LinearWeight& part : w.split) visit(part, f);
  visit(w.merge, f);
  f(w.router_gate);
  f(w.router_bias);
  visit(w.experts, f);
  visit(w.shared_up, f);
  visit(w.shared_down, f);
  visit(w.modality_up, f);
  visit(w.modality_down, f);
}
template <typename F>
void visit(PreviewLayer& w, F&& f) {
  visit(w.attention_site, f);
  visit(w.mlp_site, f);
  visit(w.attention, f);
  visit(w.mlp_norm, f);
  if (w.dense) visit(*w.dense, f);
  if (w.moe) visit(*w.moe, f);
}
template <typename F>
void visit(RefinerLayer& w, F&& f) {
  visit(w.attention, f);
  visit(w.mlp_norm, f);
  visit(w.mlp, f);
  if (w.attention_post_norm) visit(*w.attention_post_norm, f);
  if (w.mlp_post_norm) visit(*w.mlp_post_norm, f);
}
template <typename F>
void visit(FullAttentionWeights& w, F&& f) {
  visit(w.qkv, f);
  visit(w.gate, f);
  visit(w.out, f);
  visit(w.q_norm, f);
  visit(w.k_norm, f);
}
template <typename F>
void visit(DeltaNetWeights& w, F&& f) {
  visit(w.qkv, f);
  visit(w.z, f);
  visit(w.beta, f);
  visit(w.decay, f);
  visit(w.out, f);
  f(w.conv);
  f(w.a_log);
  f(w.dt_bias);
  f(w.norm);
}
template <typename F>
void visit(TextEncoderLayer& w, F&& f) {
  visit(w.mixer_norm, f);
  visit(w.mlp_norm, f);
  std::visit([&](auto& mixer) { visit(mixer, f); }, w.mixer);
  visit(w.gate_up, f);
  visit(w.down, f);
}
template <typename F>
void visit(AdapterWeights& w, F&& f) {
  visit(w.video_in, f);
  visit(w.audio_in, f);
  visit(w.text_in, f);
  visit(w.video_norm, f);
  visit(w.audio_norm, f);
  visit(w.video_out, f);
  visit(w.audio_out, f);
}

/// Bytes of all tensors of `w`.
template <typename Weights>
std::size_t bytes_of(Weights w) {
  std::size_t bytes = 0;
  visit(w, [&](const Tensor& t) { bytes += t.defined() ? t.bytes() : 0; });
  return bytes;
}

}  // namespace magi
