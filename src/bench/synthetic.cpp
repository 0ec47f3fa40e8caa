// SPDX-License-Identifier: Apache-2.0
#include "bench/synthetic.h"

#include <map>

#include "bench/random_store.h"

namespace magi {
namespace {

/// Layers 0 … count−1. `kind_of(i)`: equal for layers that may share weights. `load(i)` makes a layer.
template <typename Layer, typename KindOf, typename Load>
std::unique_ptr<WeightSource<Layer>> shared_layers(std::int64_t count, std::int64_t distinct, KindOf kind_of,
                                                   Load load) {
  require(distinct > 0, "expected at least one distinct layer of a kind, not {}", distinct);
  struct Kind {
    std::vector<Layer> layers;
    std::int64_t used = 0;
  };
  std::map<int, Kind> kinds;
  auto source = std::make_unique<ResidentWeights<Layer>>();
  for (std::int64_t i = 0; i < count; ++i) {
    Kind& kind = kinds[kind_of(i)];
    if (kind.used < distinct) kind.layers.push_back(load(i));
    source->add(kind.layers[static_cast<std::size_t>(kind.used++ % distinct)]);
  }
  return source;
}

}  // namespace

std::unique_ptr<Preview> synthetic_preview(Ops& ops, const PreviewConfig& config, DType dtype,
                                           std::int64_t distinct) {
  const RandomStore store;
  const WeightLoader root(ops, store, dtype);
  AdapterWeights adapters =
      load_adapters(root, config.channels, config.streams * config.hidden, config.attention.head_dim / 8);
  auto layers = shared_layers<PreviewLayer>(
      config.layers, distinct,
      [&](std::int64_t i) { return 2 * config.has_experts(i) + config.per_modality(i); },
      [&](std::int64_t i) { return load_preview_layer(root, config, i); });
  return std::make_unique<Preview>(config, std::move(adapters), std::move(layers));
}

std::unique_ptr<Refiner> synthetic_refiner(Ops& ops, const RefinerConfig& config, DType dtype,
                                           std::int64_t distinct) {
  const RandomStore store;
  const WeightLoader root(ops, store, dtype);
  AdapterWeights adapters =
      load_adapters(root, config.channels, config.hidden, config.attention.head_dim / 8);
  auto layers = shared_layers<RefinerLayer>(
      config.layers, distinct,
      [&](std::int64_t i) {
        return 4 * contains(config.per_modality_layers, i) + 2 * contains(config.post_norm_layers, i) +
               contains(config.window_layers, i);
      },
      [&](std::int64_t i) { return load_refiner_layer(root, config, i); });
  return std::make_unique<Refiner>(config, std::move(adapters), std::move(layers));
}

std::unique_ptr<TextEncoder> synthetic_text_encoder(Ops& ops, const TextEncoderConfig& config, DType dtype,
                                                    std::int64_t distinct) {
  const RandomStore store;
  const WeightLoader root(ops, store, dtype, "model.language_model.");
  Tensor embedding =
      ops.upload(root.stored("embed_tokens.weight", {config.vocabulary, config.hidden}).to(dtype));
  auto layers = shared_layers<TextEncoderLayer>(
      config.run_layers(), distinct,
      [&](std::int64_t i) { return static_cast<int>(config.full_attention[static_cast<std::size_t>(i)]); },
      [&](std::int64_t i) { return load_text_encoder_layer(root, config, i); });
  return std::make_unique<TextEncoder>(config, std::move(embedding), std::move(layers));
}

}  // namespace magi
