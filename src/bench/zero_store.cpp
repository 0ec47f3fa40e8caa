// SPDX-License-Identifier: Apache-2.0
#include "bench/zero_store.h"

#include <sys/mman.h>

#include <algorithm>
#include <mutex>

namespace magi {

/// Read-only zeros that take no memory. All are one mapping, made anew for a larger tensor.
Tensor ZeroStore::zeros(DType dtype, const Shape& shape) {
  static std::mutex mutex;
  static std::shared_ptr<const void> zeros;
  static std::size_t size = 0;
  const std::scoped_lock lock(mutex);
  const std::size_t bytes = static_cast<std::size_t>(numel(shape)) * size_of(dtype) + 4096;
  if (bytes > size) {
    const std::size_t room = std::max<std::size_t>(bytes, 1u << 30);
    void* memory = mmap(nullptr, room, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    require(memory != MAP_FAILED, "cannot reserve {} bytes of address space", room);
    zeros.reset(memory, [room](const void* p) { munmap(const_cast<void*>(p), room); });
    size = room;
  }
  return Tensor::view(const_cast<void*>(zeros.get()), dtype, shape, zeros);
}

Tensor ZeroStore::get(const std::string& name, const Shape& expected) const {
  if (!entries_.empty()) find(name, expected);
  return zeros(DType::bf16, expected);
}

Tensor ZeroStore::read(const std::string&, const TensorInfo& info) const {
  return zeros(info.dtype, info.shape);
}

}  // namespace magi
