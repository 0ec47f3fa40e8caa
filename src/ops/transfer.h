// SPDX-License-Identifier: Apache-2.0
// Weights on their way from host memory to a device, beside the computation: slots of device memory that
// copies fill and layers are computed from. Nothing here waits on the host except wait_filled() and
// take_times().
#pragma once

#include <cstddef>

namespace magi {

/// What the transfers of a stretch of work took, by the device's clock.
struct TransferTimes {
  std::size_t bytes = 0;
  double copy_ms = 0;   ///< while a copy was running
  double stall_ms = 0;  ///< while the computation waited for one
};

class Transfer {
 public:
  virtual ~Transfer() = default;

  virtual std::byte* slot(int index) = 0;
  /// Enqueues a copy to the start of a slot, to begin once the work that was enqueued before the slot's last
  /// release() is done. `host`, from Ops::host_memory, must stay as it is until the copy is.
  virtual void fill(int index, const std::byte* host, std::size_t bytes) = 0;
  /// Work enqueued from now on begins once the slot's last copy is done.
  virtual void acquire(int index) = 0;
  /// The work enqueued so far is the last to read the slot.
  virtual void release(int index) = 0;
  /// Waits for the slot's last copy: its host memory may change afterwards.
  virtual void wait_filled(int index) = 0;
  /// Since the last call. Waits for the copies enqueued so far.
  virtual TransferTimes take_times() = 0;
};

}  // namespace magi
