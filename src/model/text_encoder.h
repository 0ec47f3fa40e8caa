// SPDX-License-Identifier: Apache-2.0
// The text encoder: Qwen3.5, Gated DeltaNet layers with a full-attention layer between every few of them. Its
// feature is the residual two layers before the end (spec: model.md section 6).
#pragma once

#include <functional>
#include <memory>
#include <span>
#include <variant>
#include <vector>

#include "model/dit.h"
#include "model/placement.h"
#include "model/weight_source.h"

namespace magi {

class ConfigNode;

/// Sizes; the defaults are the release's.
struct TextEncoderConfig {
  std::int64_t layers = 64;  ///< of the checkpoint; the last two are never run, nor loaded
  std::int64_t hidden = 5120, intermediate = 17408, vocabulary = 248320;
  float norm_eps = 1e-6f;
  AttentionShape attention{24, 4, 256};
  std::int64_t rotary_dims = 64;  ///< of each head, the first ones
  double rope_theta = 1e7;
  std::int64_t key_heads = 16, value_heads = 48, key_dim = 128, value_dim = 128,
               conv_kernel = 4;      ///< DeltaNet
  std::vector<bool> full_attention;  ///< [layers]; false: DeltaNet

  /// From the Hugging Face config.json of the checkpoint (`text_config`).
  static TextEncoderConfig from(const ConfigNode& root);
  std::int64_t run_layers() const { return layers - 2; }
  std::int64_t conv_channels() const { return 2 * key_heads * key_dim + value_heads * value_dim; }
};

struct FullAttentionWeights {
  LinearWeight qkv, gate, out;  ///< gate: one logit for each channel of each head
  NormWeight q_norm, k_norm;
};

struct DeltaNetWeights {
  LinearWeight qkv, z, beta, decay, out;
  Tensor conv;            ///< [2·key_heads·d_k + value_heads·d_v, kernel] f32
  Tensor a_log, dt_bias;  ///< [value_heads] f32
  Tensor norm;            ///< [d_v] f32, plain
};

struct TextEncoderLayer {
  NormWeight mixer_norm, mlp_norm;
  std::variant<FullAttentionWeights, DeltaNetWeights> mixer;
  LinearWeight gate_up, down;  ///< gate and up rows interleaved
};

inline constexpr const char* kTextEncoderPrefix = "model.language_model.";
inline constexpr const char* kTextEmbedding = "embed_tokens.weight";

/// `root`: names below it are `layers.0.…`.
TextEncoderLayer load_text_encoder_layer(const WeightLoader& root, const TextEncoderConfig& config,
                                         std::int64_t layer);

class TextEncoder {
 public:
  /// `embedding` [vocabulary, hidden], f32 or bf16: its dtype is the one computed in.
  TextEncoder(TextEncoderConfig config, Tensor embedding,
              std::unique_ptr<WeightSource<TextEncoderLayer>> layers)
      : config_(std::move(config)), embedding_(std::move(embedding)), layers_(std::move(layers)) {}

  const TextEncoderConfig& config() const { return config_; }
  TransferTimes take_transfer_times() const { return layers_->take_transfer_times(); }

  /// Token ids → features [L, hidden], host memory, f32. A bf16 run gives bf16 values; the DiT takes bf16
  /// values in any case when it runs in bf16, so whoever hands f32 features to such a DiT rounds them. Memory
  /// grows linearly with L. Throws Error without tokens or for an id outside the vocabulary. `probe` sees
  /// hidden_0 (the embedding), hidden_1, ….
  Tensor encode(Ops& ops, std::span<const std::int32_t> ids, const Probe& probe = {}) const;

 private:
  TextEncoderConfig config_;
  Tensor embedding_;
  std::unique_ptr<WeightSource<TextEncoderLayer>> layers_;
};

/// The layers that are run. `store`: the checkpoint's text_encoder/, which must outlive the model where
/// layers come from disk.
std::unique_ptr<TextEncoder> load_text_encoder(Ops& ops, const TensorStore& store,
                                               const TextEncoderConfig& config, DType dtype,
                                               const std::function<void(std::int64_t layer)>& on_layer = {},
                                               const Placement& placement = {});

/// A figure's token [hidden]: the mean of the features [L, hidden] of the tokens that spell it; zeros where
/// there are none.
Tensor figure_token(const Tensor& features, std::span<const std::int64_t> tokens);

}  // namespace magi
