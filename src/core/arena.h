// SPDX-License-Identifier: Apache-2.0
// Arena: scratch memory for one request, one range sized once. A tensor from an arena gives its bytes back
// when its last view goes; the next tensor may reuse them at once (work on a device is ordered by its one
// stream). Placement depends on the sequence of requests alone, so a dry run with a counting arena tells the
// exact peak beforehand.
#pragma once

#include <cstddef>
#include <memory>

#include "core/tensor.h"

namespace magi {

class Arena {
 public:
  /// Host memory of `capacity_bytes` (address space is reserved; pages are committed when first written).
  static Arena on_host(std::size_t capacity_bytes);
  /// Memory owned by somebody else (a device allocation), held until the last tensor is gone.
  static Arena over(void* memory, std::size_t capacity_bytes, Device device,
                    std::shared_ptr<const void> owner);
  /// Counts only: tensors have a null pointer. Used to plan a request before any memory is taken.
  static Arena counting(Device device);

  /// Uninitialised, 256-byte aligned, lowest free place that fits. Throws Error when nothing fits.
  Tensor alloc(DType dtype, Shape shape);

  std::size_t used_bytes() const;
  /// Highest end of any tensor since construction or the last reset_peak().
  std::size_t peak_bytes() const;
  void reset_peak();
  std::size_t capacity_bytes() const;
  bool counts_only() const;
  Device device() const;
  /// Fill every new host tensor with NaN bytes: tests use it to find elements that an operation left
  /// unwritten.
  void poison(bool on);
  /// Host arenas: give free pages back to the system (between stages).
  void trim();

 private:
  struct Pool;
  explicit Arena(std::shared_ptr<Pool> pool) : pool_(std::move(pool)) {}

  std::shared_ptr<Pool> pool_;
};

}  // namespace magi
