// SPDX-License-Identifier: Apache-2.0
// Host memory is device memory here: moving data means sharing it or copying it once.
#include "ops/cpu/cpu_ops.h"

#include <algorithm>
#include <cstring>

namespace magi {

Tensor CpuOps::upload(const Tensor& host) {
  if (arena().counts_only()) return counted(host);
  return host.contiguous() ? host : host.clone();
}

Tensor CpuOps::counted(const Tensor& tensor) {
  const std::size_t bytes = tensor.bytes();
  held_->bytes += bytes;
  held_->peak_bytes = std::max(held_->peak_bytes, held_->bytes);
  std::shared_ptr<const void> lease(tensor.raw(),
                                    [tensor, bytes, held = held_](const void*) { held->bytes -= bytes; });
  return Tensor::view(const_cast<void*>(tensor.raw()), tensor.dtype(), tensor.shape(), std::move(lease));
}

Tensor CpuOps::download(const Tensor& device) {
  return arena().counts_only() ? Tensor::zeros(device.dtype(), device.shape()) : device.clone();
}

void CpuOps::copy_in(Tensor destination, const Tensor& host) {
  require(destination.shape() == host.shape() && destination.dtype() == host.dtype() &&
              destination.contiguous() && host.contiguous(),
          "copy_in: {} {} cannot be copied into {} {}", name_of(host.dtype()), to_string(host.shape()),
          name_of(destination.dtype()), to_string(destination.shape()));
  if (host.bytes() > 0 && !arena().counts_only()) std::memcpy(destination.raw(), host.raw(), host.bytes());
}

std::unique_ptr<Ops> make_cpu_ops(Arena& arena) {
  return std::make_unique<CpuOps>(arena);
}

}  // namespace magi
