// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "ops/ops.h"

namespace magi {

/// A host tensor as scratch memory of the backend, in `dtype`.
inline Tensor to_device(Ops& ops, const Tensor& host, DType dtype) {
  Tensor tensor = ops.arena().alloc(dtype, host.shape());
  if (!ops.arena().counts_only()) ops.copy_in(tensor, host.to(dtype));
  return tensor;
}

}  // namespace magi
