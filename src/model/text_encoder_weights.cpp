// SPDX-License-Identifier: Apache-2.0
// The text encoder's configuration and weights: names as in the Hugging Face checkpoint.
#include <algorithm>
#include <cstring>
#include <utility>

#include "io/config.h"
#include "model/layer_sources.h"
#include "model/text_encoder.h"

namespace magi {
namespace {

/// Memory for a matrix to be packed; in a dry run, which packs by the shape alone, none. Copying a layer's
/// weights there would take longer than all else.
Tensor to_pack(Ops& ops, DType dtype, Shape shape) {
  return ops.arena().counts_only() ? Tensor::view(nullptr, dtype, std::move(shape))
                                   : Tensor::empty(dtype, std::move(shape));
}

/// Matrices [rows, in] dealt out in blocks of rows: block 0 of each in turn, then block 1 of each, …, as one
/// matrix. `block` = 1 interleaves single rows; `block` = all rows of each stacks them.
Tensor deal_rows(Ops& ops, std::vector<Tensor> parts, std::vector<std::int64_t> block) {
  const bool alike =
      std::all_of(parts.begin(), parts.end(), [&](const Tensor& p) { return p.dtype() == parts[0].dtype(); });
  std::int64_t rows = 0;
  for (const Tensor& part : parts) rows += part.dim(0);
  const Tensor out = to_pack(ops, alike ? parts[0].dtype() : DType::f32, {rows, parts[0].dim(1)});
  if (out.raw() == nullptr) return out;
  for (Tensor& part : parts) part = part.to(out.dtype());
  std::int64_t row = 0;
  for (std::int64_t turn = 0; row < rows; ++turn) {
    for (std::size_t p = 0; p < parts.size(); ++p) {
      const Tensor source = parts[p].rows(turn * block[p], block[p]);
      std::memcpy(out.rows(row, block[p]).raw(), source.raw(), source.bytes());
      row += block[p];
    }
  }
  return out;
}

/// Every second block of `block` rows, from block `first` (0 or 1) on.
Tensor every_second_block(Ops& ops, const Tensor& matrix, std::int64_t block, std::int64_t first) {
  const std::int64_t blocks = matrix.dim(0) / (2 * block);
  const Tensor out = to_pack(ops, matrix.dtype(), {blocks * block, matrix.dim(1)});
  if (out.raw() == nullptr) return out;
  for (std::int64_t b = 0; b < blocks; ++b) {
    const Tensor source = matrix.rows((2 * b + first) * block, block);
    std::memcpy(out.rows(b * block, block).raw(), source.raw(), source.bytes());
  }
  return out;
}

/// q_proj holds for each head its query rows, then its gate rows.
FullAttentionWeights load_full_attention(const WeightLoader& in, const TextEncoderConfig& c) {
  const AttentionShape& a = c.attention;
  const Tensor q_and_gate = in.stored("q_proj.weight", {2 * a.q_size(), c.hidden});
  const std::int64_t kv_rows = a.kv_heads * a.head_dim;
  const Tensor qkv = deal_rows(
      in.ops(),
      {every_second_block(in.ops(), q_and_gate, a.head_dim, 0),
       in.stored("k_proj.weight", {kv_rows, c.hidden}), in.stored("v_proj.weight", {kv_rows, c.hidden})},
      {a.q_size(), kv_rows, kv_rows});
  FullAttentionWeights w;
  w.qkv = in.ops().pack_linear(qkv, 1, in.dtype());
  w.gate = in.ops().pack_linear(every_second_block(in.ops(), q_and_gate, a.head_dim, 1), 1, in.dtype());
  w.out = in.linear("o_proj", 1, c.hidden, a.q_size());
  w.q_norm = in.norm("q_norm", 1, a.head_dim, c.norm_eps);
  w.k_norm = in.norm("k_norm", 1, a.head_dim, c.norm_eps);
  return w;
}

DeltaNetWeights load_delta_net(const WeightLoader& in, const TextEncoderConfig& c) {
  const std::int64_t channels = c.conv_channels(), values = c.value_heads * c.value_dim;
  DeltaNetWeights w;
  w.qkv = in.linear("in_proj_qkv", 1, channels, c.hidden);
  w.z = in.linear("in_proj_z", 1, values, c.hidden);
  w.beta = in.linear("in_proj_b", 1, c.value_heads, c.hidden);
  w.decay = in.linear("in_proj_a", 1, c.value_heads, c.hidden);
  w.out = in.linear("out_proj", 1, c.hidden, values);
  w.conv = in.ops().upload(
      in.host("conv1d.weight", {channels, 1, c.conv_kernel}).reshape({channels, c.conv_kernel}));
  w.a_log = in.tensor("A_log", {c.value_heads});
  w.dt_bias = in.tensor("dt_bias", {c.value_heads});
  w.norm = in.tensor("norm.weight", {c.value_dim});
  return w;
}

/// `layer_types`, or every `full_attention_interval`-th layer where it is absent.
std::vector<bool> read_layer_kinds(const ConfigNode& text, std::int64_t layers) {
  std::vector<bool> full;
  if (!text.has("layer_types")) {
    const std::int64_t interval = text.integer("full_attention_interval", 4, 1, 4096);
    for (std::int64_t i = 1; i <= layers; ++i) full.push_back(i % interval == 0);
    return full;
  }
  for (const std::string& kind : text.texts("layer_types", std::nullopt)) {
    require(kind == "full_attention" || kind == "linear_attention",
            "{}: \"{}\" is not supported; expected full_attention or linear_attention",
            text.where("layer_types"), kind);
    full.push_back(kind == "full_attention");
  }
  require(static_cast<std::int64_t>(full.size()) == layers, "{}: {} entries for {} layers",
          text.where("layer_types"), full.size(), layers);
  return full;
}

/// The rotated part of each head, in halves.
void read_rotary(const ConfigNode& text, TextEncoderConfig& c) {
  const ConfigNode rope = text.node(text.has("rope_parameters") ? "rope_parameters" : "rope_scaling");
  const std::string kind = rope.text("rope_type", "default");
  require(kind == "default", "{}: \"{}\" is not supported; expected default", rope.where("rope_type"), kind);
  c.rope_theta = rope.number("rope_theta", text.number("rope_theta", c.rope_theta, 1), 1);
  const double part =
      rope.number("partial_rotary_factor", text.number("partial_rotary_factor", 0.25, 0, 1), 0, 1);
  c.rotary_dims = static_cast<std::int64_t>(static_cast<double>(c.attention.head_dim) * part);
  require(c.rotary_dims >= 2 && c.rotary_dims % 2 == 0,
          "{}: {} of head_dim {} is not an even number of channels", rope.where("partial_rotary_factor"),
          part, c.attention.head_dim);
}

}  // namespace

TextEncoderConfig TextEncoderConfig::from(const ConfigNode& root) {
  constexpr std::int64_t kMany = 1 << 20;
  const ConfigNode text = root.has("text_config") ? root.node("text_config") : root;
  TextEncoderConfig c;
  c.layers = text.integer("num_hidden_layers", c.layers, 3, 4096);
  c.hidden = text.integer("hidden_size", c.hidden, 1, kMany);
  c.intermediate = text.integer("intermediate_size", c.intermediate, 1, kMany);
  c.vocabulary = text.integer("vocab_size", c.vocabulary, 1, 1 << 24);
  c.norm_eps = static_cast<float>(text.number("rms_norm_eps", 1e-6, 0, 1));
  c.attention.heads = text.integer("num_attention_heads", c.attention.heads, 1, 4096);
  c.attention.kv_heads = text.integer("num_key_value_heads", c.attention.kv_heads, 1, 4096);
  c.attention.head_dim = text.integer("head_dim", c.attention.head_dim, 2, 4096);
  c.key_heads = text.integer("linear_num_key_heads", c.key_heads, 1, 4096);
  c.value_heads = text.integer("linear_num_value_heads", c.value_heads, 1, 4096);
  c.key_dim = text.integer("linear_key_head_dim", c.key_dim, 1, 1024);
  c.value_dim = text.integer("linear_value_head_dim", c.value_dim, 1, 1024);
  c.conv_kernel = text.integer("linear_conv_kernel_dim", c.conv_kernel, 1, 16);
  require(c.attention.heads % c.attention.kv_heads == 0,
          "{}: {} heads do not share {} key-value heads evenly", text.where("num_key_value_heads"),
          c.attention.heads, c.attention.kv_heads);
  require(c.value_heads % c.key_heads == 0, "{}: {} value heads do not share {} key heads evenly",
          text.where("linear_num_key_heads"), c.value_heads, c.key_heads);
  const std::string activation = text.text("hidden_act", "silu");
  require(activation == "silu", "{}: \"{}\" is not supported; expected silu", text.where("hidden_act"),
          activation);
  require(!text.boolean("attention_bias", false), "{}: not supported", text.where("attention_bias"));
  require(text.boolean("attn_output_gate", true), "{}: false is not supported",
          text.where("attn_output_gate"));
  c.full_attention = read_layer_kinds(text, c.layers);
  read_rotary(text, c);
  return c;
}

TextEncoderLayer load_text_encoder_layer(const WeightLoader& root, const TextEncoderConfig& config,
                                         std::int64_t layer) {
  const WeightLoader in = root.in("layers." + std::to_string(layer));
  const WeightLoader mlp = in.in("mlp");
  TextEncoderLayer w;
  w.mixer_norm = in.norm("input_layernorm", 1, config.hidden, config.norm_eps);
  w.mlp_norm = in.norm("post_attention_layernorm", 1, config.hidden, config.norm_eps);
  if (config.full_attention[static_cast<std::size_t>(layer)])
    w.mixer = load_full_attention(in.in("self_attn"), config);
  else
    w.mixer = load_delta_net(in.in("linear_attn"), config);
  const Shape wide{config.intermediate, config.hidden};
  w.gate_up = mlp.ops().pack_linear(
      deal_rows(mlp.ops(), {mlp.stored("gate_proj.weight", wide), mlp.stored("up_proj.weight", wide)},
                {1, 1}),
      1, mlp.dtype());
  w.down = mlp.linear("down_proj", 1, config.hidden, config.intermediate);
  return w;
}

std::unique_ptr<TextEncoder> load_text_encoder(Ops& ops, const TensorStore& store,
                                               const TextEncoderConfig& config, DType dtype,
                                               const std::function<void(std::int64_t layer)>& on_layer,
                                               const Placement& placement) {
  const Tensor stored = WeightLoader(ops, store, dtype, kTextEncoderPrefix)
                            .stored(kTextEmbedding, {config.vocabulary, config.hidden});
  const LayerLoader<TextEncoderLayer> loader{
      static_cast<int>(config.run_layers()),
      [&store, config, dtype](Ops& backend, int i) {
        return load_text_encoder_layer(WeightLoader(backend, store, dtype, kTextEncoderPrefix), config, i);
      },
      on_layer};
  auto layers = load_layers(ops, placement, loader);
  return std::make_unique<TextEncoder>(
      config, ops.upload(stored.dtype() == dtype ? stored : stored.to(dtype)), std::move(layers));
}

}  // namespace magi
