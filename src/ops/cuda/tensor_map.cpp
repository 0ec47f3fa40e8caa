// SPDX-License-Identifier: Apache-2.0
#include "ops/cuda/tensor_map.h"

#include <cuda_runtime_api.h>

#include "core/error.h"

namespace magi::cuda {
namespace {

using Encode = decltype(&cuTensorMapEncodeTiled);

/// The driver's function, found at run time so that programs link without the driver.
Encode find_encode() {
  void* function = nullptr;
  cudaDriverEntryPointQueryResult found{};
  const cudaError_t error =
      cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &function, 12000, cudaEnableDefault, &found);
  require(error == cudaSuccess && found == cudaDriverEntryPointSuccess && function != nullptr,
          "the NVIDIA driver has no cuTensorMapEncodeTiled: update it to one for CUDA 12 or newer");
  return reinterpret_cast<Encode>(function);
}

}  // namespace

CUtensorMap bf16_tensor_map(const void* base, std::int64_t rows, std::int64_t columns, std::int64_t pitch,
                            int box_rows) {
  static const Encode encode = find_encode();
  CUtensorMap map;
  const cuuint64_t sizes[2] = {static_cast<cuuint64_t>(columns), static_cast<cuuint64_t>(rows)};
  const cuuint64_t strides[1] = {static_cast<cuuint64_t>(pitch) * 2};
  const cuuint32_t box[2] = {64, static_cast<cuuint32_t>(box_rows)};
  const cuuint32_t steps[2] = {1, 1};
  const CUresult result =
      encode(&map, CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, 2, const_cast<void*>(base), sizes, strides, box, steps,
             CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B, CU_TENSOR_MAP_L2_PROMOTION_L2_256B,
             CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  require(result == CUDA_SUCCESS,
          "tensor map of a [{}, {}] matrix with pitch {}: the driver refuses it (error {})", rows, columns,
          pitch, static_cast<int>(result));
  return map;
}

}  // namespace magi::cuda
