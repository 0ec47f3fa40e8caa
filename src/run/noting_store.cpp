// SPDX-License-Identifier: Apache-2.0
#include "run/noting_store.h"

namespace magi {

NotingStore::NotingStore(const TensorStore& real, std::vector<std::string>& problems)
    : ZeroStore(real), problems_(problems) {}

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
  return zeros(DType::bf16, expected);
}

Tensor NotingStore::read(const std::string& name, const TensorInfo& info) const {
  ++used_;
  return ZeroStore::read(name, info);
}

}  // namespace magi
