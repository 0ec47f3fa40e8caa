// SPDX-License-Identifier: Apache-2.0
// Host memory that is used again: a step makes the same tensors as the one before, and new pages cost more
// than what is written into them.
#pragma once

#include <memory>

#include "core/tensor.h"

namespace magi {

/// Copies share their memory.
class TensorPool {
 public:
  TensorPool();

  /// As Tensor::empty, where there is none in the memory of an earlier one of as many bytes whose last view
  /// is gone. Goes back to the pool with its last view, on any thread; what the pool has is freed with the
  /// last of the pool's copies and of its tensors, and stays in the ledger until then.
  Tensor empty(DType dtype, Shape shape);

 private:
  struct Memory;
  std::shared_ptr<Memory> memory_;
};

}  // namespace magi
