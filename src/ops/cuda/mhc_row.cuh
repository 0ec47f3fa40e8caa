// SPDX-License-Identifier: Apache-2.0
#pragma once

namespace magi::cuda {

inline constexpr int kSinkhornIterations = 20;
inline constexpr float kSinkhornEps = 1e-12f;

/// v [s, s] in place: exp(v − max v), then alternately divided by the sums of columns and of rows. One
/// thread; in registers where s is known.
__device__ __forceinline__ void sinkhorn(float* v, int s) {
  float highest = v[0];
#pragma unroll
  for (int i = 1; i < s * s; ++i) highest = fmaxf(highest, v[i]);
#pragma unroll
  for (int i = 0; i < s * s; ++i) v[i] = expf(v[i] - highest);
  for (int iteration = 0; iteration < kSinkhornIterations; ++iteration) {
#pragma unroll
    for (int axis = 0; axis < 2; ++axis) {
      const int step = axis == 0 ? s : 1, start = axis == 0 ? 1 : s;
#pragma unroll
      for (int j = 0; j < s; ++j) {
        float total = 0;
#pragma unroll
        for (int i = 0; i < s; ++i) total += v[j * start + i * step];
        const float scale = 1.0f / (total + kSinkhornEps);
#pragma unroll
        for (int i = 0; i < s; ++i) v[j * start + i * step] *= scale;
      }
    }
  }
}

}  // namespace magi::cuda
