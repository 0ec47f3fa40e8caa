// SPDX-License-Identifier: Apache-2.0
// The sources of weights other than resident memory, and choosing one by a placement.
#pragma once

#include <functional>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include "io/mapped_file.h"
#include "model/layer_image.h"
#include "model/placement.h"
#include "model/read_ahead.h"
#include "model/slot_ring.h"
#include "model/weight_source.h"
#include "ops/devices.h"

namespace magi {

/// Layers that stay, and others that a thread reads whenever they are needed: where the host computes.
template <typename Layer>
class DiskWeights final : public WeightSource<Layer> {
 public:
  /// `resident[i]`: null where layer i comes from `disk`, whose items are Layers.
  DiskWeights(std::vector<Lease<Layer>> resident, std::unique_ptr<ReadAhead> disk)
      : resident_(std::move(resident)), disk_(std::move(disk)) {}
  int count() const override { return static_cast<int>(resident_.size()); }
  Lease<Layer> layer(int i) override {
    const Lease<Layer>& resident = resident_.at(static_cast<std::size_t>(i));
    return resident ? resident : std::static_pointer_cast<const Layer>(disk_->get(i));
  }

 private:
  std::vector<Lease<Layer>> resident_;
  std::unique_ptr<ReadAhead> disk_;
};

/// Layers that stay on the device, and others that come through its slots.
template <typename Layer>
class StreamedWeights final : public WeightSource<Layer> {
 public:
  using Patterns = std::vector<std::shared_ptr<const LayerPattern<Layer>>>;
  /// `resident[i]`: null where layer i comes through the slots; `patterns[i]` is known then, at the latest
  /// when it is in a slot.
  StreamedWeights(std::vector<Lease<Layer>> resident, std::shared_ptr<const Patterns> patterns, Device device,
                  std::shared_ptr<SlotRing> ring)
      : resident_(std::move(resident)),
        patterns_(std::move(patterns)),
        device_(device),
        ring_(std::move(ring)) {}
  int count() const override { return static_cast<int>(resident_.size()); }
  TransferTimes take_transfer_times() override { return ring_->take_times(); }
  Lease<Layer> layer(int i) override {
    const auto at = static_cast<std::size_t>(i);
    if (const Lease<Layer>& resident = resident_.at(at)) return resident;
    const int slot = ring_->acquire(i);
    const std::shared_ptr<void> lent(nullptr, [ring = ring_, slot](void*) { ring->release(slot); });
    return {new Layer((*patterns_)[at]->at(ring_->slot(slot), device_)),
            [lent](const Layer* layer) { delete layer; }};
  }

 private:
  std::vector<Lease<Layer>> resident_;
  std::shared_ptr<const Patterns> patterns_;
  Device device_;
  std::shared_ptr<SlotRing> ring_;
};

/// How a model's layers are made.
template <typename Layer>
struct LayerLoader {
  int count = 0;
  /// Layer i as the backend lays it out. With layers on disk also called later, by another thread with a
  /// backend of its own.
  std::function<Layer(Ops&, int)> load;
  std::function<void(std::int64_t layer)> on_layer;  ///< before layer i is loaded; may be empty
  /// An earlier layer whose weights layer i shares, or i itself; may be empty. For benchmarks.
  std::function<int(int)> twin = {};
};

namespace sources {

/// A backend of the same device for a thread that lays out weights.
class PackingBackend {
 public:
  explicit PackingBackend(Device device)
      : arena_(device.kind == Device::Kind::cuda ? make_cuda_arena(device.index, kScratch)
                                                 : Arena::on_host(kScratch)),
        ops_(make_ops(arena_)) {}
  Ops& ops() { return *ops_; }

 private:
  static constexpr std::size_t kScratch = std::size_t{1} << 20;
  Arena arena_;
  std::unique_ptr<Ops> ops_;
};

inline std::vector<int> layers_at(const Placement& placement, int count, Place place) {
  std::vector<int> layers;
  for (int i = 0; i < count; ++i)
    if (placement.of(i) == place) layers.push_back(i);
  return layers;
}

/// Loads the layers of one place, in order; `copy(i, twin)` may make one of another.
template <typename Layer, typename Keep, typename Copy = bool (*)(int, int)>
void load_at(
    Place place, Ops& ops, const Placement& placement, const LayerLoader<Layer>& loader, Keep keep,
    Copy copy = [](int, int) { return false; }) {
  for (const int i : layers_at(placement, loader.count, place)) {
    const int twin = loader.twin ? loader.twin(i) : i;
    if (twin != i && placement.of(twin) == place && copy(i, twin)) continue;
    if (loader.on_layer) loader.on_layer(i);
    keep(i, loader.load(ops, i));
    release_mapped_pages();
  }
}

template <typename Layer>
std::unique_ptr<WeightSource<Layer>> disk_weights(Ops& ops, const Placement& placement,
                                                  const LayerLoader<Layer>& loader) {
  std::vector<Lease<Layer>> resident(static_cast<std::size_t>(loader.count));
  load_at(Place::device, ops, placement, loader, [&](int i, Layer layer) {
    resident[static_cast<std::size_t>(i)] = std::make_shared<const Layer>(std::move(layer));
  });
  auto backend = std::make_shared<PackingBackend>(ops.device());
  auto disk = std::make_unique<ReadAhead>(layers_at(placement, loader.count, Place::disk), placement.slots,
                                          placement.reading_threads,
                                          [backend, load = loader.load](int i) -> ReadAhead::Item {
                                            return std::make_shared<const Layer>(load(backend->ops(), i));
                                          });
  return std::make_unique<DiskWeights<Layer>>(std::move(resident), std::move(disk));
}

/// Host memory for images, used again and again.
class ImageBuffers {
 public:
  ImageBuffers(Ops& ops, int count, std::size_t bytes) {
    for (int i = 0; i < count; ++i) free_.push_back(ops.host_memory(bytes));
  }
  /// One that is free; it is free again with its last holder.
  static std::shared_ptr<std::byte> take(const std::shared_ptr<ImageBuffers>& buffers) {
    const std::scoped_lock lock(buffers->mutex_);
    require(!buffers->free_.empty(), "no host memory is free for another layer");
    std::shared_ptr<std::byte> memory = std::move(buffers->free_.back());
    buffers->free_.pop_back();
    return {memory.get(), [memory, buffers](std::byte*) {
              const std::scoped_lock again(buffers->mutex_);
              buffers->free_.push_back(memory);
            }};
  }

 private:
  std::mutex mutex_;
  std::vector<std::shared_ptr<std::byte>> free_;
};

template <typename Layer>
std::unique_ptr<WeightSource<Layer>> streamed_weights(Ops& ops, const Placement& placement,
                                                      const LayerLoader<Layer>& loader) {
  const auto count = static_cast<std::size_t>(loader.count);
  const std::size_t slot_bytes = placement.slot_bytes;
  using Pattern = LayerPattern<Layer>;
  std::vector<Lease<Layer>> resident(count);
  auto patterns = std::make_shared<typename StreamedWeights<Layer>::Patterns>(count);
  std::vector<LayerImage> images(count);
  // Layers that wait on the host are laid out by the device, while its memory is still free.
  load_at(
      Place::host, ops, placement, loader,
      [&](int i, Layer layer) {
        const auto at = static_cast<std::size_t>(i);
        const auto pattern = std::make_shared<const Pattern>(layer);
        auto memory = ops.host_memory(pattern->bytes());
        pattern->write(ops, std::move(layer), memory.get());
        images[at] = {std::move(memory), pattern->bytes()};
        (*patterns)[at] = pattern;
      },
      [&](int i, int twin) {
        images[static_cast<std::size_t>(i)] = images[static_cast<std::size_t>(twin)];
        (*patterns)[static_cast<std::size_t>(i)] = (*patterns)[static_cast<std::size_t>(twin)];
        return true;
      });
  load_at(Place::device, ops, placement, loader, [&](int i, Layer layer) {
    resident[static_cast<std::size_t>(i)] = std::make_shared<const Layer>(std::move(layer));
  });

  std::unique_ptr<ReadAhead> disk;
  if (const auto from_disk = layers_at(placement, loader.count, Place::disk); !from_disk.empty()) {
    auto backend = std::make_shared<PackingBackend>(ops.device());
    auto buffers = std::make_shared<ImageBuffers>(ops, placement.slots, slot_bytes);
    disk = std::make_unique<ReadAhead>(
        from_disk, placement.slots, placement.reading_threads,
        [backend, buffers, patterns, slot_bytes, load = loader.load](int i) -> ReadAhead::Item {
          Layer layer = load(backend->ops(), i);
          auto& known = (*patterns)[static_cast<std::size_t>(i)];
          if (!known) known = std::make_shared<const Pattern>(layer);  // before anybody sees the layer
          const Pattern& pattern = *known;
          require(pattern.bytes() <= slot_bytes, "layer {} takes {} bytes, its slot has {}", i,
                  pattern.bytes(), slot_bytes);
          auto memory = ImageBuffers::take(buffers);
          pattern.write(backend->ops(), std::move(layer), memory.get());
          return std::make_shared<const LayerImage>(LayerImage{std::move(memory), pattern.bytes()});
        });
  }
  std::vector<int> order;
  for (int i = 0; i < loader.count; ++i)
    if (placement.of(i) != Place::device) order.push_back(i);
  auto ring = std::make_shared<SlotRing>(ops.make_transfer(placement.slots, slot_bytes), placement.slots,
                                         std::move(order), std::move(images), std::move(disk));
  return std::make_unique<StreamedWeights<Layer>>(std::move(resident), std::move(patterns), ops.device(),
                                                  std::move(ring));
}

}  // namespace sources

/// Loads a model's layers as `placement` says. What `loader.load` refers to must outlive the source where
/// layers come from disk.
template <typename Layer>
std::unique_ptr<WeightSource<Layer>> load_layers(Ops& ops, const Placement& placement,
                                                 const LayerLoader<Layer>& loader) {
  if (placement.streams() && ops.device().kind == Device::Kind::cpu && placement.count(Place::host) == 0)
    return sources::disk_weights(ops, placement, loader);
  if (placement.streams()) return sources::streamed_weights(ops, placement, loader);
  auto resident = std::make_unique<ResidentWeights<Layer>>();
  sources::load_at(Place::device, ops, placement, loader,
                   [&](int, Layer layer) { resident->add(std::move(layer)); });
  return resident;
}

}  // namespace magi
