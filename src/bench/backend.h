// SPDX-License-Identifier: Apache-2.0
// A backend with scratch memory, for programs that run one model.
#pragma once

#include <cstddef>
#include <memory>
#include <optional>
#include <string>

#include "ops/ops.h"

namespace magi {

class Backend {
 public:
  explicit Backend(Device device);

  Ops& ops() { return *ops_; }
  Arena& arena() { return *arena_; }
  /// Once the weights are loaded, and before anything computes: takes `bytes` of the device for scratch, or
  /// its free memory but for a reserve.
  void take_scratch(std::optional<std::size_t> bytes = {});

  /// Highest use of the device's memory by weights, scratch and libraries; what of the scratch was never used
  /// does not count. 0 on the CPU.
  std::size_t device_peak_bytes() const;

  /// The device's name and memory.
  static std::string describe(Device device);

 private:
  std::unique_ptr<Arena> arena_;
  std::unique_ptr<Ops> ops_;
};

}  // namespace magi
