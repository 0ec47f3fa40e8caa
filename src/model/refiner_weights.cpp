// SPDX-License-Identifier: Apache-2.0
// The refiner's configuration and weights: names as in the released checkpoint.
#include <string>

#include "io/config.h"
#include "model/layer_sources.h"
#include "model/refiner.h"

namespace magi {
RefinerConfig RefinerConfig::from(const ConfigNode& root) {
  RefinerConfig c;
  const ConfigNode arch = root.node("magi2_refiner_arch_config");
  c.layers = arch.integer("num_layers", c.layers, 1, 4096);
  c.hidden = arch.integer("hidden_size", c.hidden, 1, 1 << 20);
  c.attention = read_attention_shape(arch, c.hidden, c.attention.head_dim, c.attention.kv_heads);
  c.channels = read_latent_channels(arch);
  c.intermediate = c.hidden * 8 / 3 / 4 * 4;
  c.gated_attention = arch.boolean("enable_attn_gating", true);
  require(arch.text("activation_type", "swiglu7") == "swiglu7", "{}: only swiglu7 is supported",
          arch.where("activation_type"));
  c.per_modality_layers = arch.integers("mm_layers", c.per_modality_layers);
  std::vector<std::int64_t> all;
  for (std::int64_t i = 0; i < c.layers; ++i) all.push_back(i);
  c.window_layers = arch.integers("local_attn_layers", all);
  c.post_norm_layers = arch.integers("post_norm_layers", c.post_norm_layers);

  const ConfigNode attn =
      root.node("evaluation_config").node("magi2_refiner_data_proxy_config").node("attn_config");
  const std::string mode = attn.text("mode", "window");
  require(mode == "window" || mode == "local" || mode == "dense", "{}: \"{}\" is neither window nor dense",
          attn.where("mode"), mode);
  c.windowed = mode != "dense";
  const ConfigNode window = attn.node("window");
  require(window.text("level", "block") == "block" && window.text("block_mode", "grid") == "grid",
          "{}: only windows of blocks on a grid are supported", attn.where("window"));
  // Block sizes may stand beside the window or inside it; inside wins.
  const std::int64_t side =
      window.integer("block_size", attn.integer("block_size", c.block[1], 1, 4096), 1, 4096);
  c.block = {window.integer("block_t_size", attn.integer("block_t_size", c.block[0], 1, 4096), 1, 4096), side,
             side};
  c.radius = {window.integer("block_t_radius", c.radius[0], 0, 4096),
              window.integer("block_h_radius", c.radius[1], 0, 4096),
              window.integer("block_w_radius", c.radius[2], 0, 4096)};
  return c;
}

RefinerLayer load_refiner_layer(const WeightLoader& root, const RefinerConfig& config, std::int64_t index) {
  const int groups = contains(config.per_modality_layers, index) ? kModalities : 1;
  const WeightLoader in = root.in("block.layers." + std::to_string(index));
  RefinerLayer layer;
  layer.attention = load_attention(in, groups, config.hidden, config.attention, 0, config.gated_attention);
  layer.mlp_norm = in.norm("mlp.pre_norm", groups, config.hidden);
  layer.mlp = load_dense_mlp(in, groups, config.hidden, config.intermediate);
  if (contains(config.post_norm_layers, index)) {
    layer.attention_post_norm = in.norm("attn_post_norm", groups, config.hidden);
    layer.mlp_post_norm = in.norm("mlp_post_norm", groups, config.hidden);
  }
  layer.windowed = config.windowed && contains(config.window_layers, index);
  return layer;
}

std::unique_ptr<Refiner> load_refiner(Ops& ops, const TensorStore& store, const RefinerConfig& config,
                                      DType dtype, const std::function<void(std::int64_t)>& on_layer,
                                      const Placement& placement) {
  AdapterWeights adapters = load_adapters(WeightLoader(ops, store, dtype), config.channels, config.hidden,
                                          config.attention.head_dim / 8);
  const LayerLoader<RefinerLayer> loader{static_cast<int>(config.layers),
                                         [&store, config, dtype](Ops& backend, int i) {
                                           return load_refiner_layer(WeightLoader(backend, store, dtype),
                                                                     config, i);
                                         },
                                         on_layer};
  return std::make_unique<Refiner>(config, std::move(adapters), load_layers(ops, placement, loader));
}

}  // namespace magi
