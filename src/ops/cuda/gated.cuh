// SPDX-License-Identifier: Apache-2.0
// Gated epilogues in kernels.
#pragma once

#include "ops/cuda/rows.cuh"
#include "ops/ops.h"

namespace magi::cuda {

template <Epilogue kEpilogue>
inline constexpr bool kIsGated = kEpilogue == Epilogue::swiglu7 || kEpilogue == Epilogue::silu_gate;

/// A gated epilogue's result of type T; `round_first`: it starts from the product rounded to bf16.
template <Epilogue kEpilogue, typename T>
__device__ __forceinline__ float gated(float a, float b, bool round_first) {
  if (round_first) {
    a = __bfloat162float(__float2bfloat16(a));
    b = __bfloat162float(__float2bfloat16(b));
  }
  if constexpr (kEpilogue == Epilogue::swiglu7) return swiglu7<T>(a, b);
  return silu<T>(a) * b;
}

}  // namespace magi::cuda
