// SPDX-License-Identifier: Apache-2.0
// The preview's configuration and weights: names as in the released checkpoint.
#include <algorithm>
#include <string>

#include "io/config.h"
#include "model/layer_sources.h"
#include "model/preview.h"
#include "ops/nvfp4.h"

namespace magi {
namespace {

/// One site: alphas, biases and phi are stored apart.
MhcWeight load_mhc_site(const WeightLoader& layer, const PreviewConfig& config, int groups,
                        const std::string& site) {
  const std::int64_t s = config.streams, width = s * config.hidden;
  MhcWeight w;
  w.norm = layer.norm("mhc_norm", groups, width);
  w.phi = layer.tensor("mhc_phi_fused_" + site, {width, 2 * s + s * s});
  std::vector<float> alpha, bias;
  for (const auto& [part, shape] :
       {std::pair<std::string, Shape>{"pre", {s}}, {"post", {s}}, {"res", {s, s}}}) {
    alpha.push_back(layer.host("mhc_alpha_" + part + "_" + site, {1}).values<float>()[0]);
    const Tensor b = layer.host("mhc_bias_" + part + "_" + site, shape);
    bias.insert(bias.end(), b.values<float>().begin(), b.values<float>().end());
  }
  w.alpha = layer.ops().upload(Tensor::of<float>(alpha, {3}));
  w.bias = layer.ops().upload(Tensor::of<float>(bias, {2 * s + s * s}));
  return w;
}

/// The stored experts of some heads, none other of which are read.
class StoredExperts {
 public:
  StoredExperts(const WeightLoader& moe, const PreviewConfig& config, Share heads)
      : moe_(moe), config_(config), heads_(heads) {
    const std::int64_t n = config.moe_heads * config.experts, d = config.moe_width / config.moe_heads;
    in_ = {n, d, config.expert_hidden};
    out_ = {n, config.expert_hidden, d};
  }

  bool are_packed() const { return moe_.has(kPackedExperts); }

  PlainExperts plain() const {
    return {own(moe_.stored("W_gate", in_)), own(moe_.stored("W_up", in_)), own(moe_.stored("W_down", out_))};
  }

  /// Four-bit experts on the host: the checkpoint's own, or packed from its numbers.
  ExpertWeight packed() const {
    ExpertWeight w;
    w.heads = config_.moe_heads;
    w.experts = config_.experts;
    w.dim = in_[1];
    w.hidden = config_.expert_hidden;
    w.dtype = moe_.dtype();
    const std::int64_t head_bytes = nvfp4_layout(w).head_bytes();
    w.heads = heads_.count;
    if (are_packed()) {
      w.nvfp4 = moe_.bytes(kPackedExperts, {config_.moe_heads, head_bytes}).rows(heads_.first, heads_.count);
    } else if (moe_.ops().arena().counts_only()) {
      w.nvfp4 = Tensor::view(nullptr, DType::u8, {heads_.count, head_bytes});
    } else {
      const PlainExperts p = plain();
      w = nvfp4_experts(p.gate, p.up, p.down, heads_.count, moe_.dtype());
    }
    return w;
  }

  /// The numbers that four bits can say.
  PlainExperts fake() const {
    const ExpertWeight w = packed();
    const std::int64_t matrices = heads_.count * config_.experts;
    if (moe_.ops().arena().counts_only()) {
      const auto counted = [&](const Shape& s) {
        return Tensor::view(nullptr, DType::bf16, {matrices, s[1], s[2]});
      };
      return {counted(in_), counted(in_), counted(out_)};
    }
    return dequantize_experts(static_cast<const std::byte*>(w.nvfp4.raw()), matrices, nvfp4_layout(w));
  }

 private:
  Tensor own(const Tensor& t) const {
    return t.rows(heads_.first * config_.experts, heads_.count * config_.experts);
  }

  const WeightLoader& moe_;
  const PreviewConfig& config_;
  Share heads_;
  Shape in_, out_;  ///< of W_gate and W_up, of W_down; all heads
};

ExpertWeight load_experts(const WeightLoader& moe, const PreviewConfig& config, Share heads) {
  const StoredExperts stored(moe, config, heads);
  const ExpertFormat format = config.expert_format;
  if (format == ExpertFormat::nvfp4 || (format == ExpertFormat::stored && stored.are_packed()))
    return moe.ops().upload_experts(stored.packed());
  const PlainExperts plain =
      format == ExpertFormat::nvfp4_fake || stored.are_packed() ? stored.fake() : stored.plain();
  return moe.ops().pack_experts(plain.gate, plain.up, plain.down, heads.count, moe.dtype());
}

MoeWeights load_moe(const WeightLoader& mlp, const PreviewConfig& config, const Parallel& parallel) {
  const Share heads = parallel.expert_heads(config.moe_heads);
  const std::int64_t rows = config.moe_heads * config.experts;
  const std::int64_t d = config.moe_width / config.moe_heads;
  const WeightLoader moe = mlp.in("moe_mlp");
  const auto own = [&](const Tensor& t) {
    return t.rows(heads.first * config.experts, heads.count * config.experts);
  };
  MoeWeights w;
  std::vector<std::int64_t> widths;
  for (int r = 0; r < parallel.experts().size(); ++r)
    widths.push_back(share_of(config.moe_heads, parallel.experts().size(), r).count * d);
  w.split = mlp.linear_parts("split_linear", widths, config.hidden);
  w.merge = mlp.linear("merge_linear", 1, config.hidden, config.moe_width);
  if (heads.count > 0) {
    w.router_gate = mlp.ops().upload(own(moe.host("gate", {rows, d})));
    w.router_bias = mlp.ops().upload(own(moe.host("router.expert_bias_ema", {rows})));
    w.experts = load_experts(moe, config, heads);
  }
  w.shared_up = mlp.linear("shared_expert_fc1", 1, 2 * config.shared_hidden, config.hidden);
  w.shared_down = mlp.linear("shared_expert_fc2", 1, config.hidden, config.shared_hidden);
  w.modality_up = mlp.linear("modality_specific_shared_expert_fc1", kModalities, 2 * config.modality_hidden,
                             config.hidden);
  w.modality_down =
      mlp.linear("modality_specific_shared_expert_fc2", kModalities, config.hidden, config.modality_hidden);
  return w;
}

}  // namespace

ExpertFormat expert_format(std::string_view name) {
  if (name == "bf16") return ExpertFormat::bf16;
  if (name == "nvfp4") return ExpertFormat::nvfp4;
  require(name == "nvfp4-fake", "experts: \"{}\" is none of bf16, nvfp4, nvfp4-fake", name);
  return ExpertFormat::nvfp4_fake;
}

std::string_view name_of(ExpertFormat format) {
  switch (format) {
    case ExpertFormat::bf16:
      return "bf16";
    case ExpertFormat::nvfp4:
      return "nvfp4";
    case ExpertFormat::nvfp4_fake:
      return "nvfp4-fake";
    case ExpertFormat::stored:
      break;
  }
  return "stored";
}

bool PreviewConfig::per_modality(std::int64_t layer) const {
  return contains(per_modality_layers, layer);
}
bool PreviewConfig::has_experts(std::int64_t layer) const {
  return contains(moe_layers, layer);
}

PreviewConfig PreviewConfig::from(const ConfigNode& root) {
  constexpr std::int64_t kMany = 1 << 20;
  PreviewConfig c;
  for (std::int64_t layer = 2; layer < 38; ++layer) c.moe_layers.push_back(layer);
  const ConfigNode arch = root.node("arch_config");
  c.layers = arch.integer("num_layers", c.layers, 1, 4096);
  c.hidden = arch.integer("hidden_size", c.hidden, 1, kMany);
  c.attention = read_attention_shape(arch, c.hidden, c.attention.head_dim, std::nullopt);
  c.channels = read_latent_channels(arch);
  const double factor = arch.number("intermediate_factor", 4, 0.01, 1024);
  c.intermediate = static_cast<std::int64_t>(static_cast<double>(c.hidden) * factor * 2 / 3) / 128 * 128;
  require(c.intermediate > 0, "{}: {} of a hidden_size of {} leaves dense layers no width",
          arch.where("intermediate_factor"), factor, c.hidden);
  c.per_modality_layers = arch.integers("mm_layers", c.per_modality_layers);
  require(arch.text("activation_type", "swiglu7") == "swiglu7", "{}: only swiglu7 is supported",
          arch.where("activation_type"));
  c.gated_attention = arch.node("attn_gating").boolean("enable", true);
  const ConfigNode sinks = arch.node("attn_sinks");
  c.sinks = sinks.boolean("enable", true) ? sinks.integer("sink_token_num", 1, 1, 4096) : 0;
  c.streams = arch.node("mhc_config").integer("num_stream", c.streams, 1, 64);
  const ConfigNode moe = arch.node("moe_config");
  c.moe_layers = moe.integers("moe_layers", c.moe_layers);
  c.moe_heads = moe.integer("num_heads", c.moe_heads, 1, kMany);
  c.experts = moe.integer("num_experts", c.experts, 1, 1024);
  c.top_k = moe.integer("top_k", c.top_k, 1, std::min<std::int64_t>(c.experts, 64));
  c.expert_hidden = moe.integer("expert_intermediate_size", c.expert_hidden, 1, kMany);
  c.shared_hidden = moe.integer("shared_expert_intermediate_size", c.shared_hidden, 1, kMany);
  c.modality_hidden = moe.integer("modality_specific_expert_intermediate_size", c.modality_hidden, 1, kMany);
  c.route_scale = static_cast<float>(moe.number("route_scale", c.route_scale, 0, 1e6));
  c.moe_width = moe.integer("split_merge_intermediate_size", c.hidden, 1, kMany);
  require(c.moe_width % c.moe_heads == 0, "{}: a width of {} does not divide into {} heads",
          moe.where("num_heads"), c.moe_width, c.moe_heads);
  require(moe.text("score_func", "sigmoid") == "sigmoid" && moe.boolean("route_norm", true),
          "{}: only normalised sigmoid scores are supported", moe.where("score_func"));
  c.time_channels = root.node("evaluation_config")
                        .node("data_proxy_config")
                        .integer("time_channel_dim", c.time_channels, 2, c.streams * c.hidden);
  return c;
}

PreviewLayer load_preview_layer(const WeightLoader& root, const PreviewConfig& config, std::int64_t index,
                                const Parallel& parallel) {
  const int groups = config.per_modality(index) ? kModalities : 1;
  const WeightLoader in = root.in("block.layers." + std::to_string(index));
  PreviewLayer layer;
  layer.attention_site = load_mhc_site(in, config, groups, "attn");
  layer.mlp_site = load_mhc_site(in, config, groups, "mlp");
  layer.attention =
      load_attention(in, groups, config.hidden, config.attention, config.sinks, config.gated_attention);
  if (config.has_experts(index)) {
    layer.mlp_norm = in.norm("mlp.pre_norm", kModalities, config.hidden);
    layer.moe = load_moe(in.in("mlp"), config, parallel);
  } else {
    layer.mlp_norm = in.norm("mlp.pre_norm", groups, config.hidden);
    layer.dense = load_dense_mlp(in, groups, config.hidden, config.intermediate);
  }
  return layer;
}

std::unique_ptr<Preview> load_preview(Ops& ops, const TensorStore& store, const PreviewConfig& config,
                                      DType dtype, const std::function<void(std::int64_t)>& on_layer,
                                      const Parallel& parallel, const Placement& placement) {
  AdapterWeights adapters = load_adapters(WeightLoader(ops, store, dtype), config.channels,
                                          config.streams * config.hidden, config.attention.head_dim / 8);
  const auto load = [&store, config, dtype, parallel](Ops& backend, int i) {
    return load_preview_layer(WeightLoader(backend, store, dtype), config, i, parallel);
  };
  const LayerLoader<PreviewLayer> loader{static_cast<int>(config.layers), load, on_layer};
  return std::make_unique<Preview>(config, std::move(adapters), load_layers(ops, placement, loader),
                                   parallel);
}

}  // namespace magi
