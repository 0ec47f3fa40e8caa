// SPDX-License-Identifier: Apache-2.0
// Matrices whose rows start where memory's lines do.
#pragma once

#include <cstdint>

#include "core/tensor.h"

namespace magi {

/// Elements from row to row so that each starts a line of 128 bytes. A GPU moves whole lines: rows that
/// straddle them make the refiner's second MLP product, 10,920 wide, 7 % slower.
inline std::int64_t line_pitch(std::int64_t columns, DType dtype) {
  const auto line = static_cast<std::int64_t>(128 / size_of(dtype));
  return (columns + line - 1) / line * line;
}

}  // namespace magi
