// SPDX-License-Identifier: Apache-2.0
// What the kernels of an mHC site work on; see `mhc_site` in ops.h. Pointers to device memory.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

namespace magi::cuda {

struct MhcArgs {
  void* streams = nullptr;  ///< [rows, S, D], work dtype
  std::int64_t rows = 0;
  int streams_count = 0;         ///< S
  int width = 0;                 ///< D
  const void* branch = nullptr;  ///< [rows, D], or null
  std::int64_t branch_pitch = 0;
  void *pre = nullptr, *post = nullptr, *res = nullptr;  ///< read where there is a branch, then written
  const float* norm_weight = nullptr;                    ///< [groups, S·D]
  float norm_eps = 0;
  const float *phi = nullptr, *alpha = nullptr, *bias = nullptr;
  const float* pre_weight = nullptr;  ///< [groups, D]
  float pre_eps = 0;
  void* out = nullptr;  ///< [rows, D]
};

}  // namespace magi::cuda
