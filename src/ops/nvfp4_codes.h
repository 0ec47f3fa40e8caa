// SPDX-License-Identifier: Apache-2.0
// What packing and unpacking share: codes of whole vectors, and where a block's nibbles lie.
#pragma once

#include <array>
#include <cstddef>

#include "ops/cpu/vector_math.h"
#include "ops/nvfp4.h"

namespace magi {

inline constexpr float kE4m3SmallestNormal = 0x1p-6f;

/// Halfway between neighbours of 0, ½, 1, 1½, 2, 3, 4, 6.
inline constexpr std::array<float, 7> kHalfway{0.25f, 0.75f, 1.25f, 1.75f, 2.5f, 3.5f, 5};

/// Codes of |values|, ties to even: one more for each halfway point that is passed.
template <typename F>
MAGI2_INLINE auto magnitude_code(F a, F scale) {
  auto code = (a > kHalfway[0] * scale) + (a >= kHalfway[1] * scale);
  code += (a > kHalfway[2] * scale) + (a >= kHalfway[3] * scale);
  code += (a > kHalfway[4] * scale) + (a >= kHalfway[5] * scale);
  return code + (a > kHalfway[6] * scale);  // vectors: minus the code
}

/// 2·E2M1 of codes 0…7, for integers and vectors of them.
MAGI2_INLINE UInts doubled_magnitude(UInts code) {
  const UInts exponent = code >> 1, mantissa = code & 1u;
  return exponent == 0u ? mantissa : (mantissa | 2u) << (exponent - 1u);
}

/// Word (0 or 1) and shift of each of a block's 16 values.
struct NibblePlace {
  std::array<int, 16> word{}, shift{};
};
constexpr NibblePlace place_nibbles() {
  NibblePlace place;
  for (int k = 0; k < 16; ++k) {
    place.word[static_cast<std::size_t>(k)] = nvfp4_nibble(k) / 8;
    place.shift[static_cast<std::size_t>(k)] = nvfp4_nibble(k) % 8 * 4;
  }
  return place;
}
inline constexpr NibblePlace kNibblePlace = place_nibbles();

}  // namespace magi
