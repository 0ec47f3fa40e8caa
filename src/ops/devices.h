// SPDX-License-Identifier: Apache-2.0
// Choosing where to compute: what the machine has, and arenas and backends for it. Builds without CUDA know
// no CUDA devices and say so.
#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "ops/ops.h"

namespace magi {

struct CudaDeviceInfo {
  std::string name;
  std::size_t memory_bytes = 0;
  std::size_t free_bytes = 0;
  int sm = 0;  ///< compute capability, major·10 + minor
};

/// In the driver's order; empty without a driver, a device, or CUDA in the build.
std::vector<CudaDeviceInfo> cuda_devices();

/// "cpu", "cuda" (the first one) or "cuda:i"; throws Error for anything else.
Device parse_device(std::string_view text);
/// "cpu", "cuda:0", …
std::string to_string(Device device);

/// `bytes` of the device's memory. Throws Error where it has not as much.
Arena make_cuda_arena(int device, std::size_t bytes);

/// The CUDA backend on the arena's device; a counting arena needs no device.
std::unique_ptr<Ops> make_cuda_ops(Arena& arena);

/// What a CUDA backend enqueued, kept to be run again on the same memory.
class RecordedWork {
 public:
  virtual ~RecordedWork() = default;
  virtual void replay() = 0;
};
/// Calls `work` and keeps what it enqueues (a CUDA graph), without running it. Throws Error where `work`
/// waits for the device. Weights and scratch of operations must have been used once before.
std::unique_ptr<RecordedWork> record_cuda(Ops& ops, const std::function<void()>& work);

/// The backend of the arena's device.
std::unique_ptr<Ops> make_ops(Arena& arena);

}  // namespace magi
