// SPDX-License-Identifier: Apache-2.0
// Elements of the work dtypes in kernels: f32 and bf16, alone and in vectors; arithmetic is f32.
#pragma once

#include <cuda_bf16.h>

#include <algorithm>
#include <cstdint>

#include "core/tensor.h"
#include "ops/cuda/launch.cuh"

namespace magi::cuda {

using Bf16 = __nv_bfloat16;

__device__ __forceinline__ float to_float(float v) {
  return v;
}
__device__ __forceinline__ float to_float(Bf16 v) {
  return __bfloat162float(v);
}
/// Rounded to bf16, the same in f32, cut off in u8.
template <typename T>
__device__ __forceinline__ T from_float(float v) {
  if constexpr (sizeof(T) == 2)
    return __float2bfloat16(v);
  else
    return static_cast<T>(v);
}

/// kCount neighbours that move in one access; kCount·sizeof(T) is at most 16.
template <typename T, int kCount>
struct alignas(sizeof(T) * kCount) Pack {
  T v[kCount];
};
template <int kCount, typename T>
__device__ __forceinline__ Pack<T, kCount> load_pack(const T* from) {
  return *reinterpret_cast<const Pack<T, kCount>*>(from);
}
template <int kCount, typename T>
__device__ __forceinline__ void store_pack(T* to, const Pack<T, kCount>& pack) {
  *reinterpret_cast<Pack<T, kCount>*>(to) = pack;
}

__device__ __forceinline__ float sigmoid(float x) {
  return 1.0f / (1.0f + expf(-x));
}
/// x·σ(x), accurate enough for a result of type T: the norms' arithmetic, not memory, would bound bf16.
template <typename T>
__device__ __forceinline__ float silu(float x) {
  if constexpr (sizeof(T) == 2)
    return __fdividef(x, 1.0f + __expf(-x));
  else
    return x / (1.0f + expf(-x));
}

/// Sum over the kLanes (a power of two) neighbouring lanes of which the caller is one; the same in each.
template <int kLanes>
__device__ __forceinline__ float lanes_sum(float v) {
#pragma unroll
  for (int i = kLanes / 2; i > 0; i /= 2) v += __shfl_xor_sync(0xffffffffu, v, i);
  return v;
}

/// f(T{}) with the element type of a work dtype.
template <typename F>
void with_element(DType dtype, const F& f) {
  if (dtype == DType::bf16)
    f(Bf16{});
  else
    f(float{});
}
template <typename T>
T* elements(Tensor& t) {
  return static_cast<T*>(t.raw());
}
template <typename T>
const T* elements(const Tensor& t) {
  return static_cast<const T*>(t.raw());
}

/// Whether rows of `width` elements, `pitch` apart, can be read 16 bytes at a time.
inline bool wide(const Tensor& t, std::int64_t width) {
  const auto count = static_cast<std::int64_t>(16 / size_of(t.dtype()));
  return reinterpret_cast<std::uintptr_t>(t.raw()) % 16 == 0 && width % count == 0 && t.pitch() % count == 0;
}

/// f(integral constant): elements of an access, 16 bytes where `vectors`, else one.
template <typename T, typename F>
void with_width(bool vectors, const F& f) {
  if (vectors)
    f(std::integral_constant<int, 16 / sizeof(T)>{});
  else
    f(std::integral_constant<int, 1>{});
}

/// Blocks of `threads` for `items`, as many as a grid can have; kernels stride over the rest.
inline unsigned blocks_for(std::int64_t items, std::int64_t threads) {
  return static_cast<unsigned>(
      std::clamp<std::int64_t>((items + threads - 1) / threads, 1, std::int64_t{1} << 30));
}

}  // namespace magi::cuda
