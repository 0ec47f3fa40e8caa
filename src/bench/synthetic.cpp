// SPDX-License-Identifier: Apache-2.0
#include "bench/synthetic.h"

#include <map>

#include "model/layer_sources.h"

namespace magi {
namespace {

/// Layers 0 … count−1. `kind_of(i)`: equal for layers that may share weights. `load(i)` makes a layer.
template <typename Layer, typename KindOf, typename Load>
std::unique_ptr<WeightSource<Layer>> shared_layers(Ops& ops, std::int64_t count, const SharedLayers& shared,
                                                   KindOf kind_of, Load load) {
  if (shared.placement.streams()) {
    std::map<std::pair<Place, int>, std::vector<int>>
        own;  // layers with weights of their own, by place and kind
    std::vector<int> twins;
    for (int i = 0, n = static_cast<int>(count); i < n; ++i) {
      std::vector<int>& alike = own[{shared.placement.of(i), kind_of(i)}];
      if (std::ssize(alike) < shared.distinct) alike.push_back(i);
      twins.push_back(alike[static_cast<std::size_t>(i) % alike.size()]);
      if (alike.back() == i) twins.back() = i;
    }
    const LayerLoader<Layer> loader{static_cast<int>(count),
                                    [&](Ops&, int i) { return load(i); },
                                    {},
                                    [&](int i) { return twins[static_cast<std::size_t>(i)]; }};
    return load_layers(ops, shared.placement, loader);
  }
  require(shared.distinct > 0, "expected at least one distinct layer of a kind, not {}", shared.distinct);
  struct Kind {
    std::vector<Layer> layers;
    std::int64_t used = 0;
    std::size_t bytes = 0;
  };
  std::map<int, Kind> kinds;
  auto source = std::make_unique<ResidentWeights<Layer>>();
  for (std::int64_t i = 0; i < count; ++i) {
    Kind& kind = kinds[kind_of(i)];
    if (kind.used < shared.distinct) {
      const std::size_t before = ops.held().bytes;
      kind.layers.push_back(load(i));
      kind.bytes = LayerPattern<Layer>(kind.layers.back()).bytes();
      if (shared.bytes) shared.bytes->stored += ops.held().bytes - before;
    }
    source->add(kind.layers[static_cast<std::size_t>(kind.used++ % shared.distinct)]);
    if (shared.bytes) shared.bytes->layers.push_back(kind.bytes);
  }
  return source;
}

}  // namespace

std::unique_ptr<Preview> synthetic_preview(Ops& ops, const TensorStore& weights, const PreviewConfig& config,
                                           DType dtype, const SharedLayers& shared,
                                           const Parallel& parallel) {
  const WeightLoader root(ops, weights, dtype);
  AdapterWeights adapters =
      load_adapters(root, config.channels, config.streams * config.hidden, config.attention.head_dim / 8);
  auto layers = shared_layers<PreviewLayer>(
      ops, config.layers, shared,
      [&](std::int64_t i) { return 2 * config.has_experts(i) + config.per_modality(i); },
      [&](std::int64_t i) { return load_preview_layer(root, config, i, parallel); });
  return std::make_unique<Preview>(config, std::move(adapters), std::move(layers), parallel);
}

std::unique_ptr<Refiner> synthetic_refiner(Ops& ops, const TensorStore& weights, const RefinerConfig& config,
                                           DType dtype, const SharedLayers& shared) {
  const WeightLoader root(ops, weights, dtype);
  AdapterWeights adapters =
      load_adapters(root, config.channels, config.hidden, config.attention.head_dim / 8);
  auto layers = shared_layers<RefinerLayer>(
      ops, config.layers, shared,
      [&](std::int64_t i) {
        return 4 * contains(config.per_modality_layers, i) + 2 * contains(config.post_norm_layers, i) +
               contains(config.window_layers, i);
      },
      [&](std::int64_t i) { return load_refiner_layer(root, config, i); });
  return std::make_unique<Refiner>(config, std::move(adapters), std::move(layers));
}

std::unique_ptr<TextEncoder> synthetic_text_encoder(Ops& ops, const TensorStore& weights,
                                                    const TextEncoderConfig& config, DType dtype,
                                                    const SharedLayers& shared) {
  const WeightLoader root(ops, weights, dtype, "model.language_model.");
  Tensor embedding =
      ops.upload(root.stored("embed_tokens.weight", {config.vocabulary, config.hidden}).to(dtype));
  auto layers = shared_layers<TextEncoderLayer>(
      ops, config.run_layers(), shared,
      [&](std::int64_t i) { return static_cast<int>(config.full_attention[static_cast<std::size_t>(i)]); },
      [&](std::int64_t i) { return load_text_encoder_layer(root, config, i); });
  return std::make_unique<TextEncoder>(config, std::move(embedding), std::move(layers));
}

}  // namespace magi
