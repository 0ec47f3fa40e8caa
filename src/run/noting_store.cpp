// SPDX-License-Identifier: Apache-2.0
#include "run/noting_store.h"

#include <sys/mman.h>

#include <algorithm>

namespace magi {
namespace {

/// Read-only zeros that take no memory. All are one mapping, made anew for a larger tensor.
Tensor virtual_zeros(DType dtype, const Shape& shape) {
  static std::shared_ptr<const void> zeros;
  static std::size_t size = 0;
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

}  // namespace

NotingStore::NotingStore(const TensorStore& real, std::vector<std::string>& problems)
    : TensorStore(real.where()), problems_(problems) {
  entries_ = real.entries();
}

Tensor NotingStore::get(const std::string& name, const Shape& expected) const {
  const auto found = entries_.find(name);
  if (found == entries_.end()) {
    problems_.push_back(fmt::format("tensor {} {} is missing", name, to_string(expected)));
  } else {
    if (found->second.shape != expected)
      problems_.push_back(
          fmt::format("{} is {}, expected {}", name, to_string(found->second.shape), to_string(expected)));
    if (!found->second.readable)
      problems_.push_back(fmt::format("{} is {}, which cannot be read", name, found->second.stored_as));
    ++used_;
  }
  return virtual_zeros(DType::bf16, expected);
}

Tensor NotingStore::read(const std::string&, const TensorInfo& info) const {
  ++used_;
  return virtual_zeros(info.dtype, info.shape);
}

}  // namespace magi
