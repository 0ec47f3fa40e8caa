// SPDX-License-Identifier: Apache-2.0
// What kernels over rows share: element types, vectors of elements, sums over a block, and the weight group
// of a row.
#pragma once

#include <cstdint>

#include "core/segments.h"
#include "core/tensor.h"
#include "ops/cuda/elements.cuh"

namespace magi::cuda {

/// Whether rows of this tensor can be read `elements` at a time.
inline bool vectors_fit(const Tensor& t, std::int64_t width, int elements) {
  const auto bytes = static_cast<std::uintptr_t>(elements) * size_of(t.dtype());
  return width % elements == 0 && (t.contiguous() || t.pitch() % elements == 0) &&
         reinterpret_cast<std::uintptr_t>(t.raw()) % bytes == 0;
}

__device__ __forceinline__ float warp_sum(float v) {
  return lanes_sum<32>(v);
}

/// Sum over the block, in every thread; the block has a multiple of 32 threads, at most 1024.
__device__ __forceinline__ float block_sum(float v) {
  __shared__ float parts[32];
  v = warp_sum(v);
  __syncthreads();  // an earlier sum may still be read
  if (threadIdx.x % 32 == 0) parts[threadIdx.x / 32] = v;
  __syncthreads();
  const int lane = threadIdx.x % 32, warps = blockDim.x / 32;
  return warp_sum(lane < warps ? parts[lane] : 0.f);
}

/// swiglu7(a, b) of Epilogue in ops.h, accurate enough for a result of type T.
template <typename T>
__device__ __forceinline__ float swiglu7(float a, float b) {
  a = fminf(a, 7.0f);
  b = fminf(fmaxf(b, -7.0f), 7.0f);
  const float gate = sizeof(T) == 2 ? __fdividef(a, 1.0f + __expf(-1.702f * a)) : a * sigmoid(1.702f * a);
  return gate * (b + 1.0f);
}

/// Runs of rows of one weight group, by value for kernels.
struct RowGroups {
  static constexpr int kMost = 256;
  int count = 0;
  int end[kMost];  ///< row after the run
  unsigned char group[kMost];

  __device__ __forceinline__ int of(std::int64_t row) const {
    int i = 0;
    while (i + 1 < count && row >= end[i]) ++i;
    return group[i];
  }
};

/// One run of group 0 where there is one group.
inline RowGroups row_groups(const Segments& segments, int groups, std::int64_t rows) {
  RowGroups runs;
  const auto append = [&](std::int64_t end, int group) {
    if (runs.count > 0 && runs.group[runs.count - 1] == group) {
      runs.end[runs.count - 1] = static_cast<int>(end);
      return;
    }
    require(runs.count < RowGroups::kMost && end < (std::int64_t{1} << 31),
            "{} rows in more than {} runs of one modality: too many for the GPU; give fewer images", rows,
            RowGroups::kMost);
    runs.end[runs.count] = static_cast<int>(end);
    runs.group[runs.count++] = static_cast<unsigned char>(group);
  };
  if (groups == 1) {
    append(rows, 0);
  } else {
    for (const Segment& s : segments)
      if (s.rows > 0) append(s.first + s.rows, static_cast<int>(s.modality));
  }
  return runs;
}

}  // namespace magi::cuda
