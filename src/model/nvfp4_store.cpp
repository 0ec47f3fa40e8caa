// SPDX-License-Identifier: Apache-2.0
#include "model/nvfp4_store.h"

#include <algorithm>

#include "ops/nvfp4.h"

namespace magi {
namespace {

class PlainMatrices final : public TensorStore {
 public:
  explicit PlainMatrices(std::shared_ptr<TensorStore> store)
      : TensorStore(store->where()), store_(std::move(store)) {
    entries_ = store_->entries();
    for (const auto& [name, info] : store_->entries()) {
      if (!name.ends_with(kPackedMatrix)) continue;
      const std::string plain = name.substr(0, name.size() - std::string_view(kPackedMatrix).size());
      const auto scale = entries_.find(plain + kPackedMatrixScale);
      const bool good = info.dtype == DType::u8 && info.shape.size() == 2 && info.shape[1] % 9 == 0 &&
                        scale != entries_.end() && scale->second.dtype == DType::f32 &&
                        scale->second.shape == Shape{1};
      require(good, "{}: {} {} {} is no four-bit matrix with a scale", info.file, printable(name),
              info.stored_as, to_string(info.shape));
      entries_.erase(scale);
      entries_.erase(name);
      entries_[plain] = {DType::bf16, {info.shape[0], info.shape[1] / 9 * kNvfp4Block},
                         info.file,   "NVFP4",
                         true,        info.bytes};
      packed_.insert(plain);
    }
  }

 protected:
  Tensor read(const std::string& name, const TensorInfo&) const override {
    if (!packed_.contains(name)) return store_->load(name);
    return dequantize_matrix({store_->load(name + kPackedMatrix), store_->load(name + kPackedMatrixScale)});
  }

 private:
  std::shared_ptr<TensorStore> store_;
  std::set<std::string> packed_;
};

}  // namespace

std::shared_ptr<TensorStore> with_plain_matrices(std::shared_ptr<TensorStore> store) {
  const bool any = std::ranges::any_of(
      store->entries(), [](const auto& entry) { return entry.first.ends_with(kPackedMatrix); });
  return any ? std::make_shared<PlainMatrices>(std::move(store)) : store;
}

}  // namespace magi
