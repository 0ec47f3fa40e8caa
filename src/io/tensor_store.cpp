// SPDX-License-Identifier: Apache-2.0
#include "io/tensor_store.h"

#include <algorithm>
#include <cctype>

#include "io/finite.h"
#include "io/native_manifest.h"

namespace magi {
namespace {

bool is_float(DType dtype) {
  return dtype == DType::f32 || dtype == DType::bf16 || dtype == DType::f16 || dtype == DType::f64;
}

/// Any other byte in a C++ bool is undefined behaviour.
void check_booleans(const Tensor& tensor, const std::string& name, const TensorInfo& info) {
  const std::span bytes(static_cast<const std::uint8_t*>(tensor.raw()), tensor.bytes());
  require(std::ranges::all_of(bytes, [](std::uint8_t b) { return b <= 1; }),
          "{}: {} {} {} holds bytes other than 0 and 1", info.file, printable(name), info.stored_as,
          printable(to_string(info.shape)));
}

class MemoryStore final : public TensorStore {
 public:
  MemoryStore(std::string where, std::vector<std::pair<std::string, Tensor>> tensors)
      : TensorStore(std::move(where)) {
    for (auto& [name, tensor] : tensors) {
      entries_[name] = {tensor.dtype(), tensor.shape(), this->where(), stored_name(tensor.dtype()),
                        true,           tensor.bytes()};
      tensors_[name] = std::move(tensor);
    }
  }

 protected:
  Tensor read(const std::string& name, const TensorInfo&) const override { return tensors_.at(name); }

 private:
  std::map<std::string, Tensor> tensors_;
};

}  // namespace

const TensorInfo& TensorStore::find(const std::string& name) const {
  const auto it = entries_.find(name);
  require(it != entries_.end(), "{}: tensor {} is missing (it holds {} tensors)", where_, printable(name),
          entries_.size());
  const std::scoped_lock lock(mutex_);
  asked_.insert(name);
  return it->second;
}

Tensor TensorStore::load_found(const std::string& name, const TensorInfo& info) const {
  require(info.readable, "{}: {} is {} {}, an element type that cannot be read", info.file, printable(name),
          printable(info.stored_as), printable(to_string(info.shape)));
  if (!unverified_.empty()) std::call_once(verified_, [&] { verify_native_file(unverified_); });
  Tensor tensor = read(name, info);
  if (info.dtype == DType::boolean) check_booleans(tensor, name, info);
  return tensor;
}

Tensor TensorStore::load(const std::string& name) const {
  return load_found(name, find(name));
}

const TensorInfo& TensorStore::find(const std::string& name, const Shape& expected) const {
  const TensorInfo& info = find(name);
  require(info.shape == expected, "{}: {} is {} {}, expected {}", info.file, printable(name),
          printable(info.stored_as), printable(to_string(info.shape)), to_string(expected));
  require(!info.readable || is_float(info.dtype), "{}: {} is {} {}, expected F32, F16 or BF16", info.file,
          printable(name), info.stored_as, to_string(info.shape));
  return info;
}

Tensor TensorStore::get(const std::string& name, const Shape& expected) const {
  const TensorInfo& info = find(name, expected);
  Tensor tensor = load_found(name, info);
  const std::int64_t bad = first_non_finite(tensor);
  require(bad < 0, "{}: {} {} {} holds NaN or infinity (first at element {}): the file is damaged", info.file,
          printable(name), info.stored_as, to_string(info.shape), bad);
  return tensor;
}

std::vector<std::string> TensorStore::unused(const std::vector<std::string>& ignored_prefixes) const {
  const std::scoped_lock lock(mutex_);
  std::vector<std::string> names;
  for (const auto& entry : entries_) {
    const std::string& name = entry.first;
    const bool ignored =
        std::ranges::any_of(ignored_prefixes, [&](const auto& p) { return name.starts_with(p); });
    if (!ignored && !asked_.contains(name)) names.push_back(name);
  }
  return names;
}

std::shared_ptr<TensorStore> tensor_store_of(std::string where,
                                             std::vector<std::pair<std::string, Tensor>> tensors) {
  return std::make_shared<MemoryStore>(std::move(where), std::move(tensors));
}

std::string stored_name(DType dtype) {
  std::string name(name_of(dtype));
  std::ranges::transform(name, name.begin(), [](unsigned char c) { return std::toupper(c); });
  return name;
}

std::string printable(std::string_view text) {
  constexpr std::size_t longest = 200;
  std::string result;
  for (const unsigned char c : text.substr(0, longest)) {
    if (c >= 0x20 && c < 0x7f) {
      result += static_cast<char>(c);
    } else {
      result += fmt::format("\\x{:02x}", c);
    }
  }
  return text.size() > longest ? result + "..." : result;
}

}  // namespace magi
