// SPDX-License-Identifier: Apache-2.0
#include "ops/cuda/tensor_map.h"

#include <cuda_runtime_api.h>

#include <vector>

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

CUtensorMap make_map(const void* base, std::span<const cuuint64_t> sizes, std::span<const cuuint64_t> strides,
                     std::span<const cuuint32_t> box) {
  static const Encode encode = find_encode();
  CUtensorMap map;
  const cuuint32_t steps[] = {1, 1, 1, 1, 1};
  const CUresult result = encode(
      &map, CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, static_cast<cuuint32_t>(sizes.size()), const_cast<void*>(base),
      sizes.data(), strides.data(), box.data(), steps, CU_TENSOR_MAP_INTERLEAVE_NONE,
      CU_TENSOR_MAP_SWIZZLE_128B, CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  require(result == CUDA_SUCCESS,
          "tensor map of {} axes, {} × {} elements in the inner two: the driver refuses it (error {})",
          sizes.size(), sizes[1], sizes[0], static_cast<int>(result));
  return map;
}

}  // namespace

CUtensorMap bf16_tensor_map(const void* base, std::int64_t rows, std::int64_t columns, std::int64_t pitch,
                            int box_rows) {
  const cuuint64_t sizes[] = {static_cast<cuuint64_t>(columns), static_cast<cuuint64_t>(rows)};
  const cuuint64_t strides[] = {static_cast<cuuint64_t>(pitch) * 2};
  const cuuint32_t boxes[] = {64, static_cast<cuuint32_t>(box_rows)};
  return make_map(base, sizes, strides, boxes);
}

CUtensorMap bf16_tensor_map(const void* base, std::span<const std::int64_t> sizes, std::span<const int> box) {
  std::vector<cuuint64_t> lengths(sizes.begin(), sizes.end()), strides;
  const std::vector<cuuint32_t> boxes(box.begin(), box.end());
  cuuint64_t stride = 2;
  for (std::size_t i = 0; i + 1 < lengths.size(); ++i) strides.push_back(stride *= lengths[i]);
  return make_map(base, lengths, strides, boxes);
}

}  // namespace magi::cuda
