// SPDX-License-Identifier: Apache-2.0
// What came of a call of the CUDA runtime.
#pragma once

#include <cuda_runtime_api.h>

#include <string>

#include "core/error.h"

namespace magi::cuda {

inline void check_cuda(cudaError_t status, const char* what) {
  // Plain strings: nvcc does not take fmt's compile-time format checks.
  if (status != cudaSuccess) throw Error(std::string(what) + ": " + cudaGetErrorString(status));
}

inline void check_launch(const char* what) {
  check_cuda(cudaGetLastError(), what);
}

}  // namespace magi::cuda
