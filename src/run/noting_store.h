// SPDX-License-Identifier: Apache-2.0
// Finds out what a model's loader asks of a checkpoint, without its data.
#pragma once

#include <string>
#include <vector>

#include "bench/zero_store.h"

namespace magi {

/// Answers every request with zeros of the expected shape, which take no memory, and notes what the real
/// store could not have answered.
class NotingStore final : public ZeroStore {
 public:
  /// `problems` receives a line for each tensor that is missing, misshapen or unreadable.
  NotingStore(const TensorStore& real, std::vector<std::string>& problems);

  Tensor get(const std::string& name, const Shape& expected) const override;
  std::size_t used() const { return used_; }

 protected:
  Tensor read(const std::string& name, const TensorInfo& info) const override;

 private:
  std::vector<std::string>& problems_;
  mutable std::size_t used_ = 0;
};

}  // namespace magi
