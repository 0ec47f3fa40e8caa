// SPDX-License-Identifier: Apache-2.0
#include "core/tensor_pool.h"

#include <algorithm>
#include <mutex>
#include <vector>

namespace magi {

struct TensorPool::Memory {
  std::mutex mutex;
  std::vector<Tensor> free;

  Tensor take(DType dtype, const Shape& shape) {
    const std::size_t bytes = static_cast<std::size_t>(numel(shape)) * size_of(dtype);
    {
      const std::lock_guard lock(mutex);
      const auto fits =
          std::find_if(free.begin(), free.end(), [&](const Tensor& t) { return t.bytes() == bytes; });
      if (fits != free.end()) {
        Tensor found = std::move(*fits);
        free.erase(fits);
        return found;
      }
    }
    return Tensor::empty(dtype, shape);
  }

  void give_back(Tensor tensor) {
    const std::lock_guard lock(mutex);
    free.push_back(std::move(tensor));
  }
};

TensorPool::TensorPool() : memory_(std::make_shared<Memory>()) {}

Tensor TensorPool::empty(DType dtype, Shape shape) {
  Tensor owner = memory_->take(dtype, shape);
  void* data = owner.raw();
  std::shared_ptr<const void> lease(data,
                                    [memory = memory_, owner](const void*) { memory->give_back(owner); });
  return Tensor::view(data, dtype, std::move(shape), std::move(lease));
}

}  // namespace magi
