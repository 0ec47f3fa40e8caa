// SPDX-License-Identifier: Apache-2.0
// NVFP4 codes → bf16, eight at a time. Both formats are bf16 of a tiny exponent once their bits are moved
// into place: E2M1's seeem… as bf16 is 2^-126 times its number, E4M3's 2^-120 times, subnormal ones included;
// one multiplication undoes that, exactly.
#pragma once

#include <cstdint>

#include "ops/nvfp4.h"

namespace magi::cuda {

/// What dequantised weights are too small by; accumulators are multiplied by the matrix' scale times this.
/// Without it a block's scale would not fit into bf16 beside the 2^126.
inline constexpr float kNvfp4Rest = 512.0f;

__device__ __forceinline__ std::uint32_t multiply_bf16x2(std::uint32_t a, std::uint32_t b) {
  std::uint32_t r;
  asm("mul.rn.bf16x2 %0, %1, %2;" : "=r"(r) : "r"(a), "r"(b));
  return r;
}

/// 2^119 times as much of a matrix' scale (a power of two) as fits, in both halves, for nvfp4_scales; `rest`:
/// what is left of the scale, 1 but for weights beyond 20.
__device__ __forceinline__ std::uint32_t nvfp4_lift(float matrix_scale, float& rest) {
  const int exponent = static_cast<int>(__float_as_uint(matrix_scale) >> 23) - 127, fits = min(exponent, -7);
  rest = __uint_as_float(static_cast<std::uint32_t>(127 + exponent - fits) << 23);
  return static_cast<std::uint32_t>(127 + 119 + fits) * 0x00800080u;
}

/// Scales of blocks 2·pair and 2·pair + 1 of a column's four (E4M3, not negative, not NaN), times 2^126 and
/// what nvfp4_lift put in.
__device__ __forceinline__ std::uint32_t nvfp4_scales(std::uint32_t column, int pair,
                                                      std::uint32_t lift = 0x76807680) {
  const std::uint32_t bits = __byte_perm(column, 0, pair == 0 ? 0x4140 : 0x4342) << 4;
  return multiply_bf16x2(multiply_bf16x2(bits, 0x7f007f00), lift);  // 2^127
}

/// A word of Nvfp4Layout holds one thread's values of two blocks; those of block kBlock, times its scale of
/// nvfp4_scales: depths 2q, 2q+1 of the block in `low`, 2q+8, 2q+9 in `high`.
template <int kBlock>
__device__ __forceinline__ void nvfp4_weights(std::uint32_t word, std::uint32_t scales, std::uint32_t& low,
                                              std::uint32_t& high) {
  const std::uint32_t scale = __byte_perm(scales, 0, kBlock == 0 ? 0x1010 : 0x3232);
  if (kBlock == 1) word >>= 8;
  // A product with two powers of two is two shifts: the sign to bit 15, the rest to bits 8…6 of each half.
  low = multiply_bf16x2(((word & 0x000f000fu) * 0x1040u) & 0x81c081c0u, scale);
  high = multiply_bf16x2(((word & 0x00f000f0u) * 0x0104u) & 0x81c081c0u, scale);
}

/// One weight, exact; for kernels without a better way.
__device__ __forceinline__ float nvfp4_weight(const unsigned char* expert, const Nvfp4Layout& layout,
                                              ExpertMatrix m, int column, int k) {
  const int block = k / static_cast<int>(kNvfp4Block), nibble = Nvfp4Layout::nibble_of(k % 16);
  const unsigned code =
      expert[layout.row_at(m, column, block) + Nvfp4Layout::byte_of(block, nibble / 2)] >> (nibble % 2 * 4) &
      15u;
  const unsigned scale = expert[layout.scale_at(m, column, block)];
  const float matrix_scale = *reinterpret_cast<const float*>(expert + layout.matrix_scale_at(m));
  const float value = __uint_as_float((code & 8u) << 28 | (code & 7u) << 22) * 0x1p126f;
  return value * (__uint_as_float(scale << 20) * 0x1p120f) * matrix_scale;
}

}  // namespace magi::cuda
