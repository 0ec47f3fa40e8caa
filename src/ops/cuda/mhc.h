// SPDX-License-Identifier: Apache-2.0
// What the kernels of an mHC site work on; see `mhc_site` in ops.h. Pointers to device memory.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "ops/cuda/rows.cuh"

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

/// Whether the kernel of the release's size takes this: S 4, D 3072, bf16, compute capability 9.x, everything
/// 16-byte aligned.
bool mhc_sm90_takes(const MhcArgs& args, DType dtype);
/// Bytes of scratch for mhc_site_sm90 on streams [rows, S, D]; 0 where it does not take them.
std::int64_t mhc_sm90_scratch(DType dtype, const Shape& streams, int norm_groups);
/// `norm_groups`, `pre_groups`: weights of the norm over the streams and of the pre-norm, 1 or a modality
/// each. `runs`: as row_groups() makes them for the larger of the two.
void mhc_site_sm90(const MhcArgs& args, int norm_groups, int pre_groups, const RowGroups& runs, void* scratch,
                   cudaStream_t stream);

}  // namespace magi::cuda
