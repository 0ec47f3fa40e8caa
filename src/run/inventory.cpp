// SPDX-License-Identifier: Apache-2.0
#include "run/inventory.h"

#include <sys/mman.h>

#include <algorithm>
#include <functional>
#include <map>

#include "io/checkpoint.h"
#include "model/audio_decoder.h"
#include "model/preview.h"
#include "model/refiner.h"
#include "model/text_encoder.h"
#include "model/turbo_decoder.h"
#include "model/wan_vae.h"
#include "text/tokenizer.h"

namespace magi {
namespace {

/// Read-only zeros that take no memory. All are one mapping, made anew for a larger tensor.
Tensor virtual_zeros(DType dtype, const Shape& shape) {
  static std::shared_ptr<const void> zeros;
  static std::size_t size = 0;
  const std::size_t bytes = static_cast<std::size_t>(numel(shape)) * size_of(dtype) + 4096;
  if (bytes > size) {
    const std::size_t room = std::max<std::size_t>(bytes, 1u << 30);
    void* memory = mmap(nullptr, room, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    require(memory != MAP_FAILED, "cannot reserve {} bytes of address space", room);
    zeros.reset(memory, [room](const void* p) { munmap(const_cast<void*>(p), room); });
    size = room;
  }
  return Tensor::view(const_cast<void*>(zeros.get()), dtype, shape, zeros);
}

/// Answers every request with zeros of the expected shape and notes what the real store could not have
/// answered.
class NotingStore final : public TensorStore {
 public:
  NotingStore(const TensorStore& real, std::vector<std::string>& problems)
      : TensorStore(real.where()), problems_(problems) {
    entries_ = real.entries();
  }

  Tensor get(const std::string& name, const Shape& expected) const override {
    const auto found = entries_.find(name);
    if (found == entries_.end()) {
      problems_.push_back(fmt::format("tensor {} {} is missing", name, to_string(expected)));
    } else {
      if (found->second.shape != expected)
        problems_.push_back(
            fmt::format("{} is {}, expected {}", name, to_string(found->second.shape), to_string(expected)));
      if (!found->second.readable)
        problems_.push_back(fmt::format("{} is {}, which cannot be read", name, found->second.stored_as));
      ++used_;
    }
    return virtual_zeros(DType::bf16, expected);
  }
  std::size_t used() const { return used_; }

 protected:
  Tensor read(const std::string&, const TensorInfo& info) const override {
    ++used_;
    return virtual_zeros(info.dtype, info.shape);
  }

 private:
  std::vector<std::string>& problems_;
  mutable std::size_t used_ = 0;
};

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
    const auto store = open_checkpoint(path);
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
