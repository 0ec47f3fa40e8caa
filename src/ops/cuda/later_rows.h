// SPDX-License-Identifier: Apache-2.0
// Results whose rows are spread over several pieces of memory, on other GPUs for instance.
#pragma once

#include <cstdint>
#include <span>

#include "core/tensor.h"
#include "ops/ops.h"

namespace magi::cuda {

/// Where later rows of a result go: from row first[i] on, to the memory in which row 0 would lie at data[i],
/// with the pitch of the first rows. By value for kernels.
struct LaterRows {
  static constexpr int kMost = static_cast<int>(kRowParts) - 1;
  int count = 0;
  int first[kMost] = {};
  void* data[kMost] = {};

#ifdef __CUDACC__
  /// What row `row` counts from; `base` where it is one of the first rows.
  __device__ __forceinline__ void* base_of(std::int64_t row, void* base) const {
    for (int i = 0; i < count && row >= first[i]; ++i) base = data[i];
    return base;
  }
#endif
};

/// Of a result that takes its rows one tensor after another, those behind the first tensor.
inline LaterRows later_rows(std::span<const Tensor> y) {
  LaterRows later;
  std::int64_t row = y[0].dim(0);
  for (Tensor part : y.subspan(1)) {
    later.first[later.count] = static_cast<int>(row);
    later.data[later.count++] = static_cast<std::byte*>(part.raw()) -
                                static_cast<std::size_t>(row * part.pitch()) * size_of(part.dtype());
    row += part.dim(0);
  }
  return later;
}

}  // namespace magi::cuda
