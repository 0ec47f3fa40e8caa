// SPDX-License-Identifier: Apache-2.0
// The arithmetic of the norms for one row, to be inlined into functions compiled for each instruction set.
#pragma once

#include <cmath>

#include "ops/cpu/vector_math.h"

namespace magi {

template <typename T>
MAGI2_INLINE float sum_of_squares(const T* x, std::int64_t d) {
  Floats squares{};
  for_lanes(d, [&](std::int64_t i, auto n) MAGI2_INLINE_LAMBDA {
    const Floats v = load(x + i, n);
    squares += v * v;
  });
  return sum(squares);
}

/// 1/√(mean x² + eps)
template <typename T>
MAGI2_INLINE float rms_scale(const T* x, std::int64_t d, float eps) {
  return 1.0f / std::sqrt(sum_of_squares(x, d) / static_cast<float>(d) + eps);
}

/// y = x·rms_scale·(1 + w)
template <typename X, typename Y>
MAGI2_INLINE void normalise(const X* x, const float* w, float eps, std::int64_t d, Y* y) {
  const float scale = rms_scale(x, d, eps);
  for_lanes(d, [&](std::int64_t i, auto n) MAGI2_INLINE_LAMBDA {
    store(y + i, load(x + i, n) * scale * (load(w + i, n) + 1.0f), n);
  });
}

}  // namespace magi
