// SPDX-License-Identifier: Apache-2.0
// Models of any size without files: of random weights, or of none at all for a dry run. Layers of one kind
// share storage, so that a model of 114B parameters fits where a layer or two do; a step's arithmetic and
// traffic stay those of the full model, as far as caches do not hold a whole layer.
#pragma once

#include <memory>
#include <vector>

#include "model/preview.h"
#include "model/refiner.h"
#include "model/text_encoder.h"

namespace magi {

/// What layers would take on a device, each with weights of its own (as Ops::held counts); `stored`: what
/// they take as they are, sharing.
struct LayerBytes {
  std::vector<std::size_t> layers;
  std::size_t stored = 0;
};

/// `distinct`: at most so many layers of a kind (same tensors, same shapes) have weights of their own; the
/// others repeat them in turn. `bytes`, where given, is filled in.
struct SharedLayers {
  std::int64_t distinct = 1;
  LayerBytes* bytes = nullptr;
  /// Of the layers; those that are streamed share images in host memory.
  Placement placement = {};
};

/// `weights` answers whatever a loader asks for: RandomStore, for one.
std::unique_ptr<Preview> synthetic_preview(Ops& ops, const TensorStore& weights, const PreviewConfig& config,
                                           DType dtype, const SharedLayers& shared,
                                           const Parallel& parallel = {});
std::unique_ptr<Refiner> synthetic_refiner(Ops& ops, const TensorStore& weights, const RefinerConfig& config,
                                           DType dtype, const SharedLayers& shared);
std::unique_ptr<TextEncoder> synthetic_text_encoder(Ops& ops, const TensorStore& weights,
                                                    const TextEncoderConfig& config, DType dtype,
                                                    const SharedLayers& shared);

}  // namespace magi
