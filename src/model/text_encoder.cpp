// SPDX-License-Identifier: Apache-2.0
#include "model/text_encoder.h"

#include <algorithm>
#include <cmath>

namespace magi {
namespace {

/// [L, rotary_dims] f32 = [sin | cos] of position · θ^(−2i/rotary_dims).
Tensor rotary_table(std::int64_t rows, std::int64_t rotary_dims, double theta) {
  const std::int64_t half = rotary_dims / 2;
  Tensor table = Tensor::empty(DType::f32, {rows, rotary_dims});
  for (std::int64_t i = 0; i < half; ++i) {
    const auto frequency =
        static_cast<float>(std::pow(theta, -2.0 * static_cast<double>(i) / static_cast<double>(rotary_dims)));
    for (std::int64_t row = 0; row < rows; ++row) {
      const float angle = static_cast<float>(row) * frequency;
      table.data<float>()[row * rotary_dims + i] = std::sin(angle);
      table.data<float>()[row * rotary_dims + half + i] = std::cos(angle);
    }
  }
  return table;
}

Tensor full_attention(Ops& ops, const FullAttentionWeights& w, const AttentionShape& shape, const Tensor& n,
                      const Tensor& rope) {
  const Tensor qkv = ops.linear(n, w.qkv);
  ops.qk_norm_rope(qkv, shape.heads, shape.kv_heads, w.q_norm, w.k_norm, rope, {});
  AttentionOptions options;
  options.heads = shape.heads;
  options.kv_heads = shape.kv_heads;
  options.head_dim = shape.head_dim;
  options.causal = true;
  options.gate = ops.linear(n, w.gate);
  const std::vector<RowRange> sample{{0, n.dim(0)}};
  return ops.linear(ops.attention(qkv, sample, options), w.out);
}

/// β and the decay's input stay f32 in either precision, as the recurrence's state does.
Tensor delta_net(Ops& ops, const DeltaNetWeights& w, const TextEncoderConfig& c, const Tensor& n) {
  const Tensor beta = ops.linear(n, w.beta, {}, DType::f32);
  const Tensor decay = ops.linear(n, w.decay, {}, DType::f32);
  const Tensor qkv = ops.causal_conv_silu(ops.linear(n, w.qkv), w.conv);
  const Tensor mixed = ops.gated_delta_rule(qkv, decay, beta, w.a_log, w.dt_bias, c.key_heads, c.value_heads,
                                            c.key_dim, c.value_dim);
  return ops.linear(ops.gated_rms_norm(mixed, ops.linear(n, w.z), w.norm, c.norm_eps), w.out);
}

Tensor mixer(Ops& ops, const TextEncoderLayer& layer, const TextEncoderConfig& config, const Tensor& n,
             const Tensor& rope) {
  if (const auto* attention = std::get_if<FullAttentionWeights>(&layer.mixer))
    return full_attention(ops, *attention, config.attention, n, rope);
  return delta_net(ops, std::get<DeltaNetWeights>(layer.mixer), config, n);
}

}  // namespace

Tensor TextEncoder::encode(Ops& ops, std::span<const std::int32_t> ids, const Probe& probe) const {
  require(!ids.empty(), "the prompt is empty: it has no tokens; say what the clip should show");
  for (const std::int32_t id : ids)
    require(
        id >= 0 && id < config_.vocabulary,
        "token {} is outside the text encoder's vocabulary of {}: tokenizer.json belongs to another model",
        id, config_.vocabulary);
  const auto rows = static_cast<std::int64_t>(ids.size());
  const DType dtype = embedding_.dtype();
  const Tensor rope = ops.upload(rotary_table(rows, config_.rotary_dims, config_.rope_theta));

  const Tensor h = ops.embed(embedding_, ops.upload(Tensor::of<std::int32_t>(ids, {rows})));
  if (probe) probe("hidden_0", h);
  for (int i = 0; i < layers_->count(); ++i) {
    const Lease<TextEncoderLayer> layer = layers_->layer(i);
    ops.add(h, mixer(ops, *layer, config_, ops.rms_norm(h, layer->mixer_norm, {}, dtype), rope));
    const Tensor n = ops.rms_norm(h, layer->mlp_norm, {}, dtype);
    ops.add(h, ops.linear(ops.linear(n, layer->gate_up, Epilogue::silu_gate), layer->down));
    if (probe) probe("hidden_" + std::to_string(i + 1), h);
  }
  return ops.download(h).to(DType::f32);
}

Tensor figure_token(const Tensor& features, std::span<const std::int64_t> tokens) {
  const std::int64_t width = features.dim(1);
  std::vector<double> sum(static_cast<std::size_t>(width));
  for (const std::int64_t token : tokens) {
    const Tensor row = features.rows(token, 1);
    std::transform(sum.begin(), sum.end(), row.data<float>(), sum.begin(), std::plus<>());
  }
  Tensor mean = Tensor::zeros(DType::f32, {width});
  if (tokens.empty()) return mean;
  std::transform(sum.begin(), sum.end(), mean.data<float>(),
                 [&](double s) { return static_cast<float>(s / static_cast<double>(tokens.size())); });
  return mean;
}

}  // namespace magi
