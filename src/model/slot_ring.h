// SPDX-License-Identifier: Apache-2.0
// Layers that a device computes from a few slots of its memory, filled from the host in the order of use
// while it computes. The host waits for nothing, except for layers that come from disk.
#pragma once

#include <cstddef>
#include <exception>
#include <memory>
#include <vector>

#include "model/layer_image.h"
#include "model/read_ahead.h"
#include "ops/transfer.h"

namespace magi {

class SlotRing {
 public:
  /// `order`: the layers that come through the slots, used in this order again and again. `images[layer]`:
  /// where it stays on the host; one without data comes from `disk`, whose items are LayerImages.
  SlotRing(std::unique_ptr<Transfer> transfer, int slots, std::vector<int> order,
           std::vector<LayerImage> images, std::unique_ptr<ReadAhead> disk = nullptr);
  ~SlotRing();
  SlotRing(const SlotRing&) = delete;
  SlotRing& operator=(const SlotRing&) = delete;

  /// The slot that the layer is in; work enqueued from now on finds it there. Throws what reading it threw.
  int acquire(int layer);
  /// The work enqueued so far was the last to use the slot. A failure is thrown by the next acquire().
  void release(int slot) noexcept;
  std::byte* slot(int index) { return transfer_->slot(index); }

  TransferTimes take_times() { return transfer_->take_times(); }

 private:
  struct Slot {
    int layer = -1;
    bool lent = false;
    std::shared_ptr<const LayerImage> read;  ///< from disk: its memory is free once the copy is done
  };

  void fill(int slot, int layer, bool wait);
  void fill_free_slots();
  int restart_at(int layer);

  std::unique_ptr<ReadAhead> disk_;  ///< before the slots, which hold its items
  std::vector<LayerImage> images_;
  std::unique_ptr<Transfer> transfer_;
  std::vector<int> order_;
  std::size_t next_ = 0;  ///< position in order_ of the next layer to copy
  std::vector<Slot> slots_;
  std::exception_ptr failure_;
};

}  // namespace magi
