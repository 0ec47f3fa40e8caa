// SPDX-License-Identifier: Apache-2.0
// The refiner DiT: 6.7B parameters, block-window attention, plain residual (spec: model.md section 5).
#pragma once

#include <array>
#include <memory>
#include <optional>
#include <vector>

#include "model/dit.h"
#include "model/latent_passage.h"
#include "model/parallel.h"
#include "model/placement.h"
#include "model/refiner_rows.h"
#include "model/weight_source.h"

namespace magi {

class ConfigNode;

/// Sizes; the defaults are the release's.
struct RefinerConfig {
  std::int64_t layers = 30, hidden = 4096;
  AttentionShape attention{32, 8, 128};
  LatentChannels channels;
  std::int64_t intermediate = 10920;
  bool gated_attention = true;
  std::vector<std::int64_t> per_modality_layers{0, 1, 28, 29};
  std::vector<std::int64_t> window_layers;  ///< `local_attn_layers`: all 30; the others attend to everything
  std::vector<std::int64_t> post_norm_layers;
  std::array<std::int64_t, 3> block{8, 4, 4};   ///< cells, t,h,w
  std::array<std::int64_t, 3> radius{2, 2, 2};  ///< blocks
  bool windowed = true;  ///< attention mode; "dense" attends to everything in every layer

  /// From `magi2_refiner_arch_config` and `evaluation_config.magi2_refiner_data_proxy_config`.
  static RefinerConfig from(const ConfigNode& root);
};

struct RefinerLayer {
  AttentionWeights attention;
  NormWeight mlp_norm;
  DenseMlpWeights mlp;
  std::optional<NormWeight> attention_post_norm, mlp_post_norm;
  bool windowed = true;
};

RefinerLayer load_refiner_layer(const WeightLoader& root, const RefinerConfig& config, std::int64_t layer);

/// Cells of `grid` block by block: blocks in t,h,w order, cells inside a block too; blocks at the far edges
/// are partial.
std::vector<std::int32_t> block_order(LatentGrid grid, const std::array<std::int64_t, 3>& block);

class Refiner {
 public:
  Refiner(RefinerConfig config, AdapterWeights adapters, std::unique_ptr<WeightSource<RefinerLayer>> layers)
      : config_(std::move(config)), adapters_(std::move(adapters)), layers_(std::move(layers)) {}

  const RefinerConfig& config() const { return config_; }
  const AdapterWeights& adapters() const { return adapters_; }
  TransferTimes take_transfer_times() const { return layers_->take_transfer_times(); }

  /// A sequence of one branch in block order, of which this rank works on `rows`; video and audio as in
  /// VelocityCells. Every rank gets the whole result.
  VelocityCells forward(Ops& ops, const PackedSequence& sequence, const SequenceOnDevice& inputs,
                        const RefinerRows& rows, const Tensor& video, const Tensor& audio, DType dtype) const;

 private:
  Tensor heads(Ops& ops, const RefinerLayer& layer, const Tensor& n, const PackedSequence& sequence,
               const SequenceOnDevice& inputs, const RefinerRows& rows) const;
  VelocityCells project(Ops& ops, const PackedSequence& sequence, const RefinerRows& rows,
                        const Tensor& x) const;

  RefinerConfig config_;
  AdapterWeights adapters_;
  std::unique_ptr<WeightSource<RefinerLayer>> layers_;
};

/// The whole model. `store` must outlive it where layers come from disk; `on_layer` hears of each layer
/// before it is loaded.
std::unique_ptr<Refiner> load_refiner(Ops& ops, const TensorStore& store, const RefinerConfig& config,
                                      DType dtype,
                                      const std::function<void(std::int64_t layer)>& on_layer = {},
                                      const Placement& placement = {});

/// One guidance branch of a refining problem, on one backend and on all ranks of a guidance half.
class RefinerRun {
 public:
  /// text [L, C] host f32; `audio_rows` is 0 in the released pipeline.
  RefinerRun(Ops& ops, const Refiner& model, LatentGrid grid, std::int64_t audio_rows, const Tensor& text,
             DType dtype, const Parallel& parallel = {});
  /// latent [C,T,H,W] (a leading 1 is fine), audio [audio_rows, C'] or undefined; host f32.
  Velocity velocity(const Tensor& latent, const Tensor& audio = {});
  /// Video velocities [C,T,H,W] of both branches, on every rank: in turn, or each by a guidance half of the
  /// ranks. `between` is called after the first, where there is a between.
  static std::pair<Tensor, Tensor> guided(RefinerRun& text, RefinerRun& null_text, const Tensor& latent,
                                          const std::function<void()>& between = {});

  const PackedSequence& sequence() const { return sequence_; }
  /// Memory of tensors as large as the latent, over all steps.
  const TensorPool& pool() const { return passage_.pool(); }
  RowRange rows() const { return rows_.rows(); }  ///< of the sequence, that this rank holds
  /// Of the rows of both branches, what this rank holds when it computes as guided() does.
  static double rows_share(const RefinerRun& text, const RefinerRun& null_text);

 private:
  static bool computes_text(const Parallel& parallel) {
    return parallel.degrees().cfg == 1 || parallel.all().rank() < parallel.degrees().sp;
  }
  static bool computes_null(const Parallel& parallel) {
    return parallel.degrees().cfg == 1 || parallel.all().rank() >= parallel.degrees().sp;
  }
  Tensor cells_of(const Tensor& latent);  ///< where the backend computes
  VelocityCells forward(const Tensor& cells, const Tensor& audio);
  Tensor latent_of(const Tensor& cells);

  Ops& ops_;
  const Refiner& model_;
  Parallel parallel_;
  PackedSequence sequence_;
  DType dtype_;
  RefinerRows rows_;
  SequenceOnDevice inputs_;
  LatentPassage passage_;
};

}  // namespace magi
