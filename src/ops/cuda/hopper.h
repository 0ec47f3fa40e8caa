// SPDX-License-Identifier: Apache-2.0
// Whether the kernels written for Hopper (sm_90a) run on a GPU.
#pragma once

#include <cuda_runtime_api.h>

namespace magi::cuda {

/// False too where there is no such device: dry runs ask without a GPU.
inline bool is_hopper(int device) {
  int major = 0, minor = 0;
  const bool known =
      cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device) == cudaSuccess &&
      cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, device) == cudaSuccess;
  if (!known) cudaGetLastError();  // or the next launch would be blamed for it
  return known && major == 9 && minor == 0;
}

/// The device that the calling thread uses.
inline bool on_hopper() {
  int device = 0;
  if (cudaGetDevice(&device) == cudaSuccess) return is_hopper(device);
  cudaGetLastError();
  return false;
}

}  // namespace magi::cuda
