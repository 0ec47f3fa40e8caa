// SPDX-License-Identifier: Apache-2.0
// Weights for dry runs: zeros of whatever shape is asked for, which take no memory.
#pragma once

#include <map>
#include <string>

#include "io/tensor_store.h"

namespace magi {

class ZeroStore : public TensorStore {
 public:
  /// With the names and shapes of `real`, for loaders that ask for them before they ask for tensors.
  explicit ZeroStore(const TensorStore& real) : TensorStore(real.where()) { entries_ = real.entries(); }
  ZeroStore() : TensorStore("a dry run") {}

  Tensor get(const std::string& name, const Shape& expected) const override;

 protected:
  Tensor read(const std::string& name, const TensorInfo& info) const override;
};

}  // namespace magi
