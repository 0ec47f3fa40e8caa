// SPDX-License-Identifier: Apache-2.0
// Weights for dry runs: zeros of whatever shape is asked for, which take no memory.
#pragma once

#include <map>
#include <string>

#include "io/tensor_store.h"

namespace magi {

class ZeroStore : public TensorStore {
 public:
  /// With the names and shapes of `real`, which get() insists on as `real` would: a model that the checkpoint
  /// does not hold fails here, before a dry run takes memory for its activations.
  explicit ZeroStore(const TensorStore& real) : TensorStore(real.where()) { entries_ = real.entries(); }
  ZeroStore() : TensorStore("a dry run") {}

  Tensor get(const std::string& name, const Shape& expected) const override;

 protected:
  Tensor read(const std::string& name, const TensorInfo& info) const override;
  static Tensor zeros(DType dtype, const Shape& shape);
};

}  // namespace magi
