// SPDX-License-Identifier: Apache-2.0
// The preview DiT: 114B parameters, mixture of experts, hyper-connected residual streams (spec: model.md
// section 4).
#pragma once

#include <memory>
#include <optional>
#include <vector>

#include "model/dit.h"
#include "model/expert_format.h"
#include "model/latent_passage.h"
#include "model/placement.h"
#include "model/weight_source.h"

namespace magi {

class ConfigNode;

/// Sizes; the defaults are the release's.
struct PreviewConfig {
  std::int64_t layers = 40, hidden = 3072, streams = 4;
  AttentionShape attention{24, 24, 128};
  LatentChannels channels;
  std::int64_t intermediate = 8192;  ///< dense layers
  std::int64_t sinks = 1;
  bool gated_attention = true;
  std::vector<std::int64_t> per_modality_layers{0, 1, 38, 39};
  std::vector<std::int64_t> moe_layers;  ///< 2 … 37
  std::int64_t moe_heads = 12, experts = 256, top_k = 6, moe_width = 3072, expert_hidden = 1280;
  std::int64_t shared_hidden = 1280, modality_hidden = 1280;
  float route_scale = 4.9f;
  std::int64_t time_channels = 64;
  ExpertFormat expert_format = ExpertFormat::stored;  ///< a choice of the run, not of the checkpoint

  /// From `arch_config` and `evaluation_config.data_proxy_config` of an official config.
  static PreviewConfig from(const ConfigNode& root);
  bool per_modality(std::int64_t layer) const;
  bool has_experts(std::int64_t layer) const;
};

struct MoeWeights {
  std::vector<LinearWeight> split;  ///< the heads' inputs, by rank of the expert group: those of its heads
  LinearWeight merge;
  Tensor router_gate, router_bias;  ///< [heads·experts, d_head], [heads·experts] f32, of this rank's heads
  ExpertWeight experts;
  LinearWeight shared_up, shared_down, modality_up, modality_down;
};

struct PreviewLayer {
  MhcWeight attention_site, mlp_site;
  AttentionWeights attention;
  NormWeight mlp_norm;
  std::optional<DenseMlpWeights> dense;
  std::optional<MoeWeights> moe;
};

/// Four-bit experts of a layer, below moe_mlp, where a checkpoint has them in place of W_gate, W_up and
/// W_down: ExpertWeight::nvfp4.
inline constexpr const char* kPackedExperts = "experts_nvfp4";

/// Over several ranks, of the experts only those of this rank's heads: nothing else of them is read.
PreviewLayer load_preview_layer(const WeightLoader& root, const PreviewConfig& config, std::int64_t layer,
                                const Parallel& parallel = {});

class Preview {
 public:
  Preview(PreviewConfig config, AdapterWeights adapters, std::unique_ptr<WeightSource<PreviewLayer>> layers,
          Parallel parallel = {})
      : config_(std::move(config)),
        adapters_(std::move(adapters)),
        layers_(std::move(layers)),
        parallel_(std::move(parallel)) {}

  const PreviewConfig& config() const { return config_; }
  const AdapterWeights& adapters() const { return adapters_; }
  const Parallel& parallel() const { return parallel_; }
  TransferTimes take_transfer_times() const { return layers_->take_transfer_times(); }

  /// Video cells [T·H·W, C], audio [A, C'], time features [2, time_channels] (clean, noised) → each branch's
  /// velocity. Over several ranks each works on its rows (`inputs`), and all get every velocity; a probe sees
  /// the rank's part.
  std::vector<VelocityCells> forward(Ops& ops, const PackedSequence& sequence, const SequenceOnDevice& inputs,
                                     const Tensor& video, const Tensor& audio, const Tensor& times,
                                     DType dtype, const Probe& probe = {}) const;

  /// forward() without the last projections: [N, S·D]. Nothing in it waits for the device.
  Tensor hidden_states(Ops& ops, const PackedSequence& sequence, const SequenceOnDevice& inputs,
                       const Tensor& video, const Tensor& audio, const Tensor& times, DType dtype,
                       const Probe& probe = {}) const;

 private:
  Tensor attention(Ops& ops, const PreviewLayer& layer, const Tensor& n, const SequenceOnDevice& inputs,
                   const Segments& sequence) const;
  Tensor mlp(Ops& ops, const PreviewLayer& layer, Tensor n, const SequenceOnDevice& inputs,
             const Segments& sequence, const Probe& probe) const;

  PreviewConfig config_;
  AdapterWeights adapters_;
  std::unique_ptr<WeightSource<PreviewLayer>> layers_;
  Parallel parallel_;
};

/// The whole model. `store` must outlive it where layers come from disk; `on_layer` hears of each layer
/// before it is loaded.
std::unique_ptr<Preview> load_preview(Ops& ops, const TensorStore& store, const PreviewConfig& config,
                                      DType dtype,
                                      const std::function<void(std::int64_t layer)>& on_layer = {},
                                      const Parallel& parallel = {}, const Placement& placement = {});

/// One denoising problem on one backend: what stays the same over the steps is computed once.
class PreviewRun {
 public:
  PreviewRun(Ops& ops, const Preview& model, PackedSequence sequence, DType dtype);

  /// latent [C,T,H,W] (or [1,C,T,H,W]), audio [A,C'] (or [1,A,C']), host f32; timestep 0…1000 → one velocity
  /// a branch.
  std::vector<Velocity> velocity(const Tensor& latent, const Tensor& audio, double timestep,
                                 const Probe& probe = {});

  const PackedSequence& sequence() const { return sequence_; }
  /// Memory of tensors as large as the latent, over all steps.
  const TensorPool& pool() const { return passage_.pool(); }

 private:
  Ops& ops_;
  const Preview& model_;
  PackedSequence sequence_;
  DType dtype_;
  SequenceOnDevice inputs_;
  LatentPassage passage_;
};

}  // namespace magi
