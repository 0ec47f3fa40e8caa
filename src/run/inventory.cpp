// SPDX-License-Identifier: Apache-2.0
#include "run/inventory.h"

#include <algorithm>
#include <functional>
#include <map>

#include "io/checkpoint.h"
#include "model/audio_decoder.h"
#include "model/nvfp4_store.h"
#include "model/preview.h"
#include "model/refiner.h"
#include "model/text_encoder.h"
#include "model/turbo_decoder.h"
#include "model/wan_vae.h"
#include "run/noting_store.h"
#include "text/tokenizer.h"

namespace magi {
namespace {

using Loader = std::function<void(Ops&, const TensorStore&)>;

void count_tensors(const TensorStore& store, PartInventory& part) {
  std::map<std::string, std::size_t> bytes_of;
  for (const auto& [name, info] : store.entries()) {
    part.bytes += info.bytes;
    bytes_of[info.stored_as] += info.bytes;
  }
  part.tensors = store.entries().size();
  for (const auto& [dtype, bytes] : bytes_of) part.dtypes.push_back(dtype);
  std::sort(part.dtypes.begin(), part.dtypes.end(),
            [&](const std::string& a, const std::string& b) { return bytes_of[a] > bytes_of[b]; });
}

/// Opens the weights and runs the loader; what goes wrong becomes a problem of the part.
PartInventory inspect_part(std::string name, const std::filesystem::path& path, bool needed,
                           const Loader& load) {
  PartInventory part{std::move(name), path, needed, 0, 0, {}, {}, 0};
  try {
    const auto store = with_plain_matrices(open_checkpoint(path));
    count_tensors(*store, part);
    const NotingStore noting(*store, part.problems);
    Arena arena = Arena::counting({});
    const auto ops = make_cpu_ops(arena);
    load(*ops, noting);
    part.unknown = part.tensors - std::min(part.tensors, noting.used());
  } catch (const Error& e) {
    part.problems.emplace_back(e.what());
  }
  return part;
}

}  // namespace

std::vector<PartInventory> take_inventory(const CheckpointRoot& root) {
  std::vector<PartInventory> parts;
  parts.push_back(
      inspect_part("text encoder", root.text_encoder(), true, [&](Ops& ops, const TensorStore& store) {
        const std::filesystem::path path = root.text_encoder();
        load_text_encoder(ops, store, TextEncoderConfig::from(ConfigNode::read(path / "config.json")),
                          DType::bf16);
        Tokenizer::load(path / "tokenizer.json");
      }));
  parts.push_back(inspect_part("preview", root.preview(), true, [&](Ops& ops, const TensorStore& store) {
    load_preview(ops, store, PreviewConfig::from(root.config()), DType::bf16);
  }));
  parts.push_back(inspect_part(
      "turbo decoder", root.turbo_decoder_weights(), true, [&](Ops& ops, const TensorStore& store) {
        TurboDecoder(WeightLoader(ops, store, DType::bf16),
                     read_turbo_config(ConfigNode::read(root.turbo_decoder_config())));
      }));
  parts.push_back(
      inspect_part("audio decoder", root.audio_decoder(), true, [&](Ops& ops, const TensorStore& store) {
        AudioDecoder(WeightLoader(ops, store, DType::f32, "pretransform.model.decoder."),
                     read_audio_config(ConfigNode::read(root.audio_decoder() / "model_config.json")));
      }));
  parts.push_back(inspect_part("refiner", root.refiner(), false, [&](Ops& ops, const TensorStore& store) {
    load_refiner(ops, store, RefinerConfig::from(root.config()), DType::bf16);
  }));
  parts.push_back(
      inspect_part("Wan autoencoder", root.wan_vae(), false, [&](Ops& ops, const TensorStore& store) {
        WanEncoder(WeightLoader(ops, store, DType::f32));
        WanDecoder(WeightLoader(ops, store, DType::f32));
      }));
  return parts;
}

}  // namespace magi
