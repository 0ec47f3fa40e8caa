// SPDX-License-Identifier: Apache-2.0
// Launching kernels.
#pragma once

#include <cuda_runtime.h>

#include "ops/cuda/check.h"

namespace magi::cuda {

/// As many blocks as multiprocessors, one to each, with `shared_bytes` of shared memory.
template <typename Args>
void launch_persistent(void (*kernel)(Args), const Args& args, int threads, std::size_t shared_bytes,
                       cudaStream_t stream, const char* what) {
  int device = 0, processors = 0;
  check_cuda(cudaGetDevice(&device), what);
  check_cuda(cudaDeviceGetAttribute(&processors, cudaDevAttrMultiProcessorCount, device), what);
  check_cuda(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                  static_cast<int>(shared_bytes)),
             what);
  kernel<<<processors, threads, shared_bytes, stream>>>(args);
  check_launch(what);
}

}  // namespace magi::cuda
