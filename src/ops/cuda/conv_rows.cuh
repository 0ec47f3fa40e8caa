// SPDX-License-Identifier: Apache-2.0
// What the convolution kernels share: where rows of the product lie in y, where their inputs lie in x, and
// how results are stored.
#pragma once

#include "ops/cuda/conv.h"
#include "ops/cuda/elements.cuh"

namespace magi::cuda {

/// Output cells of one phase. A transposed convolution of stride s has s phases along w, o ≡ phase (mod s):
/// each is a convolution of stride 1 with every s-th tap. Others have one.
struct ConvRows {
  const ConvShape& s;
  int phase, phases, width;  ///< cells of the phase along w

  __device__ __forceinline__ ConvRows(const ConvShape& shape, int phase_index)
      : s(shape), phase(phase_index), phases(shape.transposed ? shape.stride[2] : 1) {
    width = (s.out_size[2] - phase + phases - 1) / phases;
  }
  __device__ __forceinline__ int count() const { return s.out_size[0] * s.out_size[1] * width; }
  __device__ __forceinline__ void cell(int row, int (&at)[3]) const {
    at[2] = row % width;
    at[1] = row / width % s.out_size[1];
    at[0] = row / width / s.out_size[1];
  }
  /// First element of the row's output.
  __device__ __forceinline__ std::int64_t output(int row) const {
    int at[3];
    cell(row, at);
    return ((static_cast<std::int64_t>(at[0]) * s.out_size[1] + at[1]) * s.out_size[2] + at[2] * phases +
            phase) *
           s.out;
  }
  /// Input cell that tap 0's shift is added to.
  __device__ __forceinline__ void origin(int row, int (&at)[3]) const {
    cell(row, at);
    at[0] *= s.stride[0];
    at[1] *= s.stride[1];
    if (!s.transposed) at[2] *= s.stride[2];
  }
  /// Input cell of a tap relative to the origin; false where no output of this phase has it.
  __device__ __forceinline__ bool shift(int tap, int (&by)[3]) const {
    const int c = tap % s.kernel[2], b = tap / s.kernel[2] % s.kernel[1], a = tap / s.kernel[2] / s.kernel[1];
    by[0] = a * s.dilation[0] - s.pad[0];
    by[1] = b * s.dilation[1] - s.pad[1];
    by[2] = c * s.dilation[2] - s.pad[2];
    if (!s.transposed) return true;
    const int behind = phase - by[2];
    by[2] = behind / s.stride[2];
    return behind % s.stride[2] == 0;
  }
  /// Element of x at origin + shift, or −1 outside.
  __device__ __forceinline__ std::int64_t input(const int (&origin)[3], const int (&by)[3]) const {
    const int t = origin[0] + by[0], h = origin[1] + by[1], w = origin[2] + by[2];
    const bool inside =
        t >= 0 && t < s.in_size[0] && h >= 0 && h < s.in_size[1] && w >= 0 && w < s.in_size[2];
    return inside ? ((static_cast<std::int64_t>(t) * s.in_size[1] + h) * s.in_size[2] + w) * s.in : -1;
  }
};

/// Steps of the product: chunks of kChunk input channels of each tap that the phase has.
template <int kChunk>
struct ConvSteps {
  const ConvRows& rows;
  int tap = -1, channel = 0, taps;
  int by[3];
  bool more = true;

  __device__ __forceinline__ explicit ConvSteps(const ConvRows& r)
      : rows(r), taps(r.s.kernel[0] * r.s.kernel[1] * r.s.kernel[2]) {
    next_tap();
  }
  __device__ __forceinline__ void next() {
    channel += kChunk;
    if (channel >= rows.s.in) next_tap();
  }

 private:
  __device__ __forceinline__ void next_tap() {
    channel = 0;
    do {
      if (++tap >= taps) {
        more = false;
        return;
      }
    } while (!rows.shift(tap, by));
  }
};

/// kCount neighbouring channels of a row of y, plus bias; one access where `wide` (out is a multiple of
/// kCount).
template <int kCount, typename T>
__device__ __forceinline__ void store_channels(T* row, const float* bias, int channel, int out,
                                               const float (&v)[kCount], bool wide) {
  if (wide && channel < out) {
    Pack<T, kCount> pack;
#pragma unroll
    for (int i = 0; i < kCount; ++i) pack.v[i] = from_float<T>(bias ? v[i] + bias[channel + i] : v[i]);
    store_pack<kCount>(row + channel, pack);
  } else {
    for (int i = 0; i < kCount; ++i)
      if (channel + i < out) row[channel + i] = from_float<T>(bias ? v[i] + bias[channel + i] : v[i]);
  }
}

}  // namespace magi::cuda
