// SPDX-License-Identifier: Apache-2.0
// A checkpoint that exists nowhere: every tensor that a model's loader asks for is drawn when it asks.
#pragma once

#include <map>
#include <string>

#include "io/tensor_store.h"
#include "ops/nvfp4.h"

namespace magi {

/// get() gives normal values of the expected shape, of a size at which activations neither vanish nor
/// explode: matrices in bf16 as the release stores them, vectors in f32. The values of a name depend on the
/// name alone, not on threads.
class RandomStore final : public TensorStore {
 public:
  RandomStore() : TensorStore("random weights") {}
  /// Makes load(name) give NVFP4 experts [heads, layout.head_bytes()], of the size at which get() draws
  /// numbers.
  void add_nvfp4(const std::string& name, std::int64_t heads, const Nvfp4Layout& layout);
  Tensor get(const std::string& name, const Shape& expected) const override;

 protected:
  Tensor read(const std::string& name, const TensorInfo& info) const override;

 private:
  std::map<std::string, Nvfp4Layout> nvfp4_;
};

}  // namespace magi
