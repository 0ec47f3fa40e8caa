// SPDX-License-Identifier: Apache-2.0
// NVFP4 → bf16, two values at a time. Nvfp4Layout's pairs are bf16 numbers of 2^-126 times the values,
// subnormal ones included; the block's scale with its exponent raised undoes that in one exact
// multiplication.
#pragma once

#include <cstdint>

#include "ops/nvfp4.h"

namespace magi::cuda {

/// What weights dequantised without nvfp4_lift are too small by; their accumulators are multiplied by the
/// matrix' scale times this. Without it a block's scale would not fit into bf16 beside the 2^126.
inline constexpr float kNvfp4Rest = 512.0f;

/// a times half kHalf of b. Taken apart like this the half is a modifier of the multiplication, not an
/// instruction.
template <int kHalf>
__device__ __forceinline__ std::uint32_t multiply_bf16x2(std::uint32_t a, std::uint32_t b) {
  std::uint32_t r;
  if constexpr (kHalf == 0)
    asm("{\n.reg .b16 l, h;\n.reg .b32 both;\nmov.b32 {l, h}, %2;\nmov.b32 both, {l, l};\n"
        "mul.rn.bf16x2 %0, %1, both;\n}"
        : "=r"(r)
        : "r"(a), "r"(b));
  else
    asm("{\n.reg .b16 l, h;\n.reg .b32 both;\nmov.b32 {l, h}, %2;\nmov.b32 both, {h, h};\n"
        "mul.rn.bf16x2 %0, %1, both;\n}"
        : "=r"(r)
        : "r"(a), "r"(b));
  return r;
}

/// What makes bf16 of a scale's byte in bits 11…4, 2^(126 + exponent) times the scale, in both halves.
__host__ __device__ constexpr std::uint32_t nvfp4_raise(int exponent) {
  return static_cast<std::uint32_t>(127 - 9 + 126 + exponent) * 0x00800080u;
}

/// The same with as much of a matrix' scale (a power of two) as fits, for nvfp4_scales; `rest`: what is left
/// of the scale, 1 but for weights beyond 20.
__device__ __forceinline__ std::uint32_t nvfp4_lift(float matrix_scale, float& rest) {
  const int exponent = static_cast<int>(__float_as_uint(matrix_scale) >> 23) - 127, fits = min(exponent, -7);
  rest = __uint_as_float(static_cast<std::uint32_t>(127 + exponent - fits) << 23);
  return nvfp4_raise(fits);
}

/// Scales of a column's blocks 2·pair (low half) and 2·pair + 1, times 2^126 and what nvfp4_lift put in.
__device__ __forceinline__ std::uint32_t nvfp4_scales(std::uint32_t column, int pair,
                                                      std::uint32_t lift = nvfp4_raise(-9)) {
  return __byte_perm(column, 0, pair == 0 ? 0x4140 : 0x4342) * 16 + lift;
}

/// A word of Nvfp4Layout holds one thread's values of two blocks; those of block kBlock, times its scale of
/// nvfp4_scales: depths 2q, 2q+1 of the block in `low`, 2q+8, 2q+9 in `high`.
template <int kBlock>
__device__ __forceinline__ void nvfp4_weights(std::uint32_t word, std::uint32_t scales, std::uint32_t& low,
                                              std::uint32_t& high) {
  low = multiply_bf16x2<kBlock>(Nvfp4Layout::pair(word, 2 * kBlock), scales);
  high = multiply_bf16x2<kBlock>(Nvfp4Layout::pair(word, 2 * kBlock + 1), scales);
}

/// One weight, exact; for kernels without a better way.
__device__ __forceinline__ float nvfp4_weight(const unsigned char* expert, const Nvfp4Layout& layout,
                                              ExpertMatrix m, int column, int k) {
  const int block = k / static_cast<int>(kNvfp4Block);
  const auto word = *reinterpret_cast<const std::uint32_t*>(expert + layout.row_at(m, column, block) +
                                                            Nvfp4Layout::word_of(block, k % 16));
  const std::uint32_t pair = Nvfp4Layout::pair(word, Nvfp4Layout::pair_of(block, k % 16)),
                      scale = expert[layout.scale_at(m, column, block)] + Nvfp4Layout::kScaleBias;
  const float matrix_scale = *reinterpret_cast<const float*>(expert + layout.matrix_scale_at(m));
  const float value = __uint_as_float(k % 2 == 0 ? pair << 16 : pair & 0xffff0000u) * 0x1p126f;
  return value * __uint_as_float(scale << 20) * matrix_scale;
}

}  // namespace magi::cuda
