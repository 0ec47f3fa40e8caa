// SPDX-License-Identifier: Apache-2.0
#include "model/slot_ring.h"

#include <algorithm>

namespace magi {

SlotRing::SlotRing(std::unique_ptr<Transfer> transfer, int slots, std::vector<int> order,
                   std::vector<LayerImage> images, std::unique_ptr<ReadAhead> disk)
    : disk_(std::move(disk)),
      images_(std::move(images)),
      transfer_(std::move(transfer)),
      order_(std::move(order)),
      slots_(static_cast<std::size_t>(slots)) {
  require(!order_.empty() && slots > 0, "no layers to stream, or no slots for them");
  fill_free_slots();
}

SlotRing::~SlotRing() {
  for (std::size_t i = 0; i < slots_.size(); ++i)
    if (slots_[i].read) transfer_->wait_filled(static_cast<int>(i));
}

int SlotRing::acquire(int layer) {
  if (failure_) std::rethrow_exception(std::exchange(failure_, nullptr));
  const auto found =
      std::find_if(slots_.begin(), slots_.end(), [&](const Slot& s) { return s.layer == layer && !s.lent; });
  const int slot = found != slots_.end() ? static_cast<int>(found - slots_.begin()) : restart_at(layer);
  transfer_->acquire(slot);
  slots_[static_cast<std::size_t>(slot)].lent = true;
  fill_free_slots();
  return slot;
}

void SlotRing::release(int slot) noexcept {
  try {
    transfer_->release(slot);
    slots_[static_cast<std::size_t>(slot)].layer = -1;
    slots_[static_cast<std::size_t>(slot)].lent = false;
    fill_free_slots();
  } catch (...) {
    failure_ = std::current_exception();
  }
}

/// Another layer than the expected one is wanted (a step ended early), or the disk was late.
int SlotRing::restart_at(int layer) {
  const auto place = std::find(order_.begin(), order_.end(), layer);
  require(place != order_.end(), "layer {} is not among those that are streamed", layer);
  next_ = static_cast<std::size_t>(place - order_.begin());
  const auto free = std::find_if(slots_.begin(), slots_.end(), [](const Slot& s) { return !s.lent; });
  require(free != slots_.end(), "more layers are borrowed than there are slots");
  for (Slot& slot : slots_)
    if (!slot.lent) slot.layer = -1;
  const int slot = static_cast<int>(free - slots_.begin());
  fill(slot, layer, true);
  return slot;
}

/// Without `wait`: not yet, where the layer is still on its way from the disk.
void SlotRing::fill(int index, int layer, bool wait) {
  Slot& slot = slots_[static_cast<std::size_t>(index)];
  if (slot.read) {
    transfer_->wait_filled(index);
    slot.read.reset();
  }
  const LayerImage* image = &images_[static_cast<std::size_t>(layer)];
  if (!image->data) {
    const ReadAhead::Item item = wait ? disk_->get(layer) : disk_->try_get(layer);
    if (!item) return;
    slot.read = std::static_pointer_cast<const LayerImage>(item);
    image = slot.read.get();
  }
  transfer_->fill(index, image->data.get(), image->bytes);
  slot.layer = layer;
  next_ = (next_ + 1) % order_.size();
}

void SlotRing::fill_free_slots() {
  for (std::size_t i = 0; i < slots_.size(); ++i) {
    if (slots_[i].layer >= 0) continue;
    const int layer = order_[next_];
    const bool there =
        std::any_of(slots_.begin(), slots_.end(), [&](const Slot& s) { return s.layer == layer && !s.lent; });
    if (there) return;  // fewer layers than slots
    fill(static_cast<int>(i), layer, false);
    if (slots_[i].layer < 0) return;
  }
}

}  // namespace magi
