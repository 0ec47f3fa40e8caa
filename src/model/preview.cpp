// SPDX-License-Identifier: Apache-2.0
#include "model/preview.h"

#include <string>

#include "model/to_device.h"

namespace magi {

std::vector<VelocityCells> Preview::forward(Ops& ops, const PackedSequence& sequence,
                                            const SequenceOnDevice& inputs, const Tensor& video,
                                            const Tensor& audio, const Tensor& times, DType dtype,
                                            const Probe& probe) const {
  const Tensor hidden = hidden_states(ops, sequence, inputs, video, audio, times, dtype, probe);
  return project_velocity(ops, adapters_, sequence, inputs, hidden, parallel_);
}

Tensor Preview::hidden_states(Ops& ops, const PackedSequence& sequence, const SequenceOnDevice& inputs,
                              const Tensor& video, const Tensor& audio, const Tensor& times, DType dtype,
                              const Probe& probe) const {
  const Segments& segments = inputs.segments;
  const Tensor hidden = embed_tokens(ops, adapters_, sequence, inputs, video, audio, dtype);
  if (probe) probe("embed", hidden);
  ops.set_time_features(hidden, times, segments);

  const Tensor streams = hidden.reshape({inputs.rows.size(), config_.streams, config_.hidden});
  MhcCoefficients mix;
  Tensor branch;  // the last branch's output: the next site adds it to the streams
  for (int i = 0; i < layers_->count(); ++i) {
    const Lease<PreviewLayer> layer = layers_->layer(i);
    Tensor n = ops.mhc_site(streams, branch, mix, layer->attention_site, layer->attention.norm, segments);
    branch = attention(ops, *layer, n, inputs, sequence.segments);
    n = ops.mhc_site(streams, branch, mix, layer->mlp_site, layer->mlp_norm, segments);
    branch = mlp(ops, *layer, std::move(n), inputs, sequence.segments, probe);
    if (probe) {
      ops.mhc_finish(streams, branch, mix);
      branch = {};
      probe("layer_" + std::to_string(i) + "_out", hidden);
    }
  }
  if (branch.defined()) ops.mhc_finish(streams, branch, mix);
  return hidden;
}

Tensor Preview::attention(Ops& ops, const PreviewLayer& layer, const Tensor& n,
                          const SequenceOnDevice& inputs, const Segments& sequence) const {
  const std::vector<RowRange> samples = parallel_.samples(sequence);
  const auto whole_samples = [&](const Tensor& qkv, const AttentionOptions& options,
                                 std::span<const Tensor> y) { ops.attention_into(qkv, samples, options, y); };
  const Tensor heads = attended_heads(
      ops, layer.attention, config_.attention, n, inputs.rope, inputs.segments,
      [&](const Tensor& qkv, const AttentionOptions& options, const FinishHeads& finish) {
        return parallel_.attention(ops, sequence, inputs.landings, qkv, options, finish, whole_samples);
      });
  return ops.linear(heads, layer.attention.proj, inputs.segments, n.dtype());
}

Tensor Preview::mlp(Ops& ops, const PreviewLayer& layer, Tensor n, const SequenceOnDevice& inputs,
                    const Segments& sequence, const Probe& probe) const {
  const Segments& segments = inputs.segments;
  const DType dtype = n.dtype();
  if (layer.dense) {
    const Tensor inner = ops.linear(n, layer.dense->up, segments, dtype, Epilogue::swiglu7);
    return ops.linear(inner, layer.dense->down, segments, dtype);
  }
  const MoeWeights& w = *layer.moe;

  // The shared experts may run while the tokens are on their way to the routed ones.
  Dispatch dispatch = parallel_.to_expert_heads(ops, sequence, inputs.landings, n, w.split);
  const Tensor shared = ops.linear(ops.linear(n, w.shared_up, Epilogue::swiglu7), w.shared_down);
  {
    const Tensor inner = ops.linear(n, w.modality_up, segments, dtype, Epilogue::swiglu7);
    ops.linear_add(shared, inner, w.modality_down, segments);
  }
  n = {};

  Tensor z = dispatch.arrive();
  dispatch = {};
  const auto routed = [&](std::span<const Tensor> y) {
    const Routing routing =
        ops.route(z, w.router_gate, w.router_bias, w.experts.heads, config_.top_k, config_.route_scale);
    if (probe) probe("routing_index", routing.index), probe("routing_weight", routing.weight);
    ops.experts_into(z, routing, w.experts, y);
    z = {};
  };
  const Tensor y = parallel_.from_expert_heads(ops, sequence, inputs.landings, config_.moe_heads,
                                               config_.moe_width / config_.moe_heads, dtype, routed);
  ops.linear_add(shared, y, w.merge, segments);
  return shared;
}

PreviewRun::PreviewRun(Ops& ops, const Preview& model, PackedSequence sequence, DType dtype)
    : ops_(ops), model_(model), sequence_(std::move(sequence)), dtype_(dtype), passage_(ops) {
  inputs_ = upload_sequence(ops, sequence_, model.parallel().rows(sequence_.segments),
                            model.adapters().rotary_bands);
  const PreviewConfig& c = model.config();
  inputs_.landings = model.parallel().open_landings(
      sequence_.segments, {c.attention.heads, c.attention.kv_heads, c.attention.head_dim, c.gated_attention,
                           c.moe_layers.empty() ? 0 : c.moe_heads, c.moe_width, dtype});
}

std::vector<Velocity> PreviewRun::velocity(const Tensor& latent, const Tensor& audio, double timestep,
                                           const Probe& probe) {
  const std::int64_t channels = model_.config().time_channels;
  std::vector<float> times = time_features(0.0f, channels);
  const std::vector<float> noised = time_features(static_cast<float>(timestep) / 1000.0f, channels);
  times.insert(times.end(), noised.begin(), noised.end());
  const Tensor features = to_device(ops_, Tensor::of<float>(times, {2, channels}), DType::f32);
  const Tensor video_rows = passage_.to_cells(latent, sequence_.video_order);
  const Tensor audio_rows = to_device(ops_, audio.reshape({audio.dim(-2), audio.dim(-1)}), DType::f32);
  std::vector<Velocity> velocities;
  for (const VelocityCells& branch :
       model_.forward(ops_, sequence_, inputs_, video_rows, audio_rows, features, dtype_, probe))
    velocities.push_back(
        {passage_.to_host(branch.video, sequence_.grid, sequence_.video_order), ops_.download(branch.audio)});
  return velocities;
}

}  // namespace magi
