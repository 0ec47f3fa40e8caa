// SPDX-License-Identifier: Apache-2.0
// The tiny root's configuration and its two diffusion transformers.
#include <nlohmann/json.hpp>

#include "core/segments.h"
#include "run/tiny_weights.h"

namespace magi {
namespace {

constexpr std::int64_t kVideo = 48, kAudio = 64, kText = 64;
constexpr std::int64_t kHidden = 128, kHeadDim = 32, kHeads = 4, kStreams = 4;
constexpr std::int64_t kLayers = 6, kDenseHidden = 256;  // ⌊128·4·2/3⌋ rounded down to 128
constexpr std::int64_t kMoeHeads = 4, kExperts = 8, kExpertHidden = 48, kSharedHidden = 48,
                       kModalityHidden = 32;
constexpr std::int64_t kRefinerLayers = 4, kRefinerKvHeads = 2,
                       kRefinerHidden = 340;  // ⌊128·4·2/3⌋ rounded down to 4
constexpr float kSmall = 0.05f;

bool per_modality(std::int64_t layer, std::int64_t layers) {
  return layer == 0 || layer == layers - 1;
}

void adapters(WeightMaker& w, std::int64_t width) {
  for (const auto& [name, channels] : {std::pair{"video", kVideo}, {"text", kText}, {"audio", kAudio}}) {
    w.linear(std::string("pre_adapter.") + name + "_embedder", width, channels);
    w.normal(std::string("pre_adapter.") + name + "_embedder.bias", {width}, kSmall);
  }
  for (const auto& [name, channels] : {std::pair{"video", kVideo}, {"audio", kAudio}}) {
    w.normal(std::string("post_adapter.final_norm_") + name + ".weight", {width}, kSmall);
    w.linear(std::string("post_adapter.final_linear_") + name, channels, width);
  }
}

void attention(WeightMaker& w, const std::string& layer, std::int64_t groups, std::int64_t kv_heads) {
  const std::string a = layer + "attention.";
  w.normal(a + "pre_norm.weight", {groups * kHidden}, kSmall);
  w.linear(a + "linear_qkv", groups * (kHeads + 2 * kv_heads) * kHeadDim, kHidden, DType::bf16);
  w.linear(a + "linear_g", groups * kHeads, kHidden, DType::bf16);
  w.linear(a + "linear_proj", groups * kHidden, kHeads * kHeadDim, DType::bf16);
  w.normal(a + "q_norm.weight", {groups * kHeadDim}, kSmall);
  w.normal(a + "k_norm.weight", {groups * kHeadDim}, kSmall);
}

void dense_mlp(WeightMaker& w, const std::string& layer, std::int64_t groups, std::int64_t hidden) {
  w.normal(layer + "mlp.pre_norm.weight", {groups * kHidden}, kSmall);
  w.linear(layer + "mlp.up_gate_proj", groups * 2 * hidden, kHidden, DType::bf16);
  w.linear(layer + "mlp.down_proj", groups * kHidden, hidden, DType::bf16);
}

void moe_mlp(WeightMaker& w, const std::string& layer) {
  const std::string m = layer + "mlp.";
  const std::int64_t rows = kMoeHeads * kExperts, d = kHidden / kMoeHeads;
  const float in = 1 / std::sqrt(static_cast<float>(d)),
              out = 1 / std::sqrt(static_cast<float>(kExpertHidden));
  w.normal(m + "pre_norm.weight", {kModalities * kHidden}, kSmall);
  w.linear(m + "split_linear", kHidden, kHidden, DType::bf16);
  w.linear(m + "merge_linear", kHidden, kHidden, DType::bf16);
  w.normal(m + "moe_mlp.gate", {rows, d}, in);
  w.normal(m + "moe_mlp.router.expert_bias", {rows}, kSmall);
  w.normal(m + "moe_mlp.router.expert_bias_ema", {rows}, kSmall);
  w.normal(m + "moe_mlp.W_gate", {rows, d, kExpertHidden}, in, 0, DType::bf16);
  w.normal(m + "moe_mlp.W_up", {rows, d, kExpertHidden}, in, 0, DType::bf16);
  w.normal(m + "moe_mlp.W_down", {rows, kExpertHidden, d}, out, 0, DType::bf16);
  w.linear(m + "shared_expert_fc1", 2 * kSharedHidden, kHidden, DType::bf16);
  w.linear(m + "shared_expert_fc2", kHidden, kSharedHidden, DType::bf16);
  w.linear(m + "modality_specific_shared_expert_fc1", kModalities * 2 * kModalityHidden, kHidden,
           DType::bf16);
  w.linear(m + "modality_specific_shared_expert_fc2", kModalities * kHidden, kModalityHidden, DType::bf16);
}

void hyper_connections(WeightMaker& w, const std::string& layer, std::int64_t groups) {
  const std::int64_t width = kStreams * kHidden;
  w.normal(layer + "mhc_norm.weight", {groups * width}, kSmall);
  for (const std::string site : {"attn", "mlp"}) {
    w.normal(layer + "mhc_phi_fused_" + site, {width, 2 * kStreams + kStreams * kStreams}, 1);
    for (const std::string part : {"pre", "post", "res"}) {
      w.constant(layer + "mhc_alpha_" + part + "_" + site, {1}, 0.01f);
      w.normal(layer + "mhc_bias_" + part + "_" + site,
               part == "res" ? Shape{kStreams, kStreams} : Shape{kStreams}, 0.5f);
    }
  }
}

nlohmann::json refiner_data_config() {
  const nlohmann::json window{{"level", "block"},
                              {"block_mode", "grid"},
                              {"block_t_radius", 1},
                              {"block_h_radius", 1},
                              {"block_w_radius", 1}};
  return {{"attn_config", {{"mode", "window"}, {"block_t_size", 8}, {"block_size", 4}, {"window", window}}}};
}

}  // namespace

nlohmann::json tiny_config() {
  const nlohmann::json sizes{{"hidden_size", kHidden},      {"head_dim", kHeadDim},
                             {"video_in_channels", kVideo}, {"audio_in_channels", kAudio},
                             {"text_in_channels", kText},   {"activation_type", "swiglu7"},
                             {"params_dtype", "bfloat16"}};
  nlohmann::json arch = sizes, refiner = sizes;
  arch.update({{"num_layers", kLayers},
               {"num_query_groups", kHeads},
               {"intermediate_factor", 4},
               {"mm_layers", {0, kLayers - 1}},
               {"attn_gating", {{"enable", true}}},
               {"attn_sinks", {{"enable", true}, {"sink_token_num", 1}}},
               {"mhc_config", {{"enable", true}, {"num_stream", kStreams}, {"alpha_init", 0.01}}},
               {"moe_config",
                {{"num_experts", kExperts},
                 {"top_k", 3},
                 {"score_func", "sigmoid"},
                 {"route_norm", true},
                 {"route_scale", 4.9},
                 {"moe_layers", {1, 2, 3, 4}},
                 {"expert_intermediate_size", kExpertHidden},
                 {"shared_expert_intermediate_size", kSharedHidden},
                 {"modality_specific_expert_intermediate_size", kModalityHidden},
                 {"num_heads", kMoeHeads}}}});
  refiner.update({{"num_layers", kRefinerLayers},
                  {"num_query_groups", kRefinerKvHeads},
                  {"mm_layers", {0, kRefinerLayers - 1}},
                  {"local_attn_layers", {0, 1, 2, 3}},
                  {"enable_attn_gating", true},
                  {"post_norm_layers", nlohmann::json::array()}});
  return {{"about", "a tiny, untrained model with random weights"},
          {"generation", {{"width", 160}, {"height", 96}, {"seconds", 10.0}, {"steps", 20}}},
          {"arch_config", arch},
          {"magi2_refiner_arch_config", refiner},
          {"evaluation_config",
           {{"fps", 12.5},
            {"shift", 7.0},
            {"magi2_refiner_num_inference_steps", 5},
            {"magi2_refiner_shift", 5.0},
            {"data_proxy_config", {{"time_channel_dim", 64}}},
            {"magi2_refiner_data_proxy_config", refiner_data_config()}}}};
}

NamedTensors tiny_preview(NoiseGenerator& noise) {
  WeightMaker w(noise);
  adapters(w, kStreams * kHidden);
  for (std::int64_t i = 0; i < kLayers; ++i) {
    const std::string layer = "block.layers." + std::to_string(i) + ".";
    const std::int64_t groups = per_modality(i, kLayers) ? kModalities : 1;
    hyper_connections(w, layer, groups);
    attention(w, layer, groups, kHeads);
    w.normal(layer + "attention.sinks", {1, kHeads}, 1);
    if (per_modality(i, kLayers))
      dense_mlp(w, layer, groups, kDenseHidden);
    else
      moe_mlp(w, layer);
  }
  return w.take();
}

NamedTensors tiny_refiner(NoiseGenerator& noise) {
  WeightMaker w(noise);
  adapters(w, kHidden);
  for (std::int64_t i = 0; i < kRefinerLayers; ++i) {
    const std::string layer = "block.layers." + std::to_string(i) + ".";
    const std::int64_t groups = per_modality(i, kRefinerLayers) ? kModalities : 1;
    attention(w, layer, groups, kRefinerKvHeads);
    dense_mlp(w, layer, groups, kRefinerHidden);
  }
  return w.take();
}

}  // namespace magi
