// SPDX-License-Identifier: Apache-2.0
#include "io/torch_pickle.h"

#include <cstring>

#include "io/mapped_file.h"
#include "io/pickle.h"
#include "io/zip_archive.h"

namespace magi {
namespace {

constexpr std::string_view kPickleName = "/data.pkl";

/// The archive's one top directory, from the place of its pickle.
std::string find_prefix(const ZipArchive& archive, const std::string& where) {
  std::string prefix;
  for (const auto& [name, content] : archive.entries()) {
    const bool at_top = name.ends_with(kPickleName) && name.find('/') == name.size() - kPickleName.size();
    if (!at_top) continue;
    require(prefix.empty(), "{}: more than one data.pkl", where);
    prefix = name.substr(0, name.size() - kPickleName.size() + 1);
  }
  require(!prefix.empty(), "{}: no data.pkl inside: not a PyTorch checkpoint", where);
  return prefix;
}

void check_byte_order(const ZipArchive& archive, const std::string& prefix, const std::string& where) {
  const auto record = archive.entries().find(prefix + "byteorder");
  if (record == archive.entries().end()) return;
  const std::string order(reinterpret_cast<const char*>(record->second.data()), record->second.size());
  require(order == "little", "{}: byte order \"{}\": only little-endian checkpoints are read", where,
          printable(order));
}

/// The value of the last item called `key`, null when there is none.
PickledRef item(const PickledDict& dict, std::string_view key) {
  PickledRef found = nullptr;
  for (const auto& [name, value] : dict.items)
    if (name->as<std::string>() && *name->as<std::string>() == key) found = value;
  return found;
}

const PickledDict& state_dict(const Pickle& pickle, const std::string& where) {
  const auto* root = pickle.root->as<PickledDict>();
  require(root != nullptr, "{}: the pickle holds no dict of tensors", where);
  for (const std::string_view wrapper : {"ema_state_dict", "state_dict"}) {
    const PickledRef inner = item(*root, wrapper);
    if (inner && inner->as<PickledDict>()) return *inner->as<PickledDict>();
  }
  return *root;
}

bool row_major(const PickledTensor& tensor) {
  std::int64_t expected = 1;
  for (std::size_t i = tensor.shape.size(); i-- > 0;) {
    if (tensor.shape[i] != 1 && tensor.strides[i] != expected) return false;
    expected *= tensor.shape[i];
  }
  return true;
}

/// Copies the elements of one strided axis and those inside it, in row-major order.
void gather(const PickledTensor& tensor, std::size_t axis, const std::byte* from, std::size_t element,
            std::byte*& to) {
  if (axis == tensor.shape.size()) {
    std::memcpy(to, from, element);
    to += element;
    return;
  }
  for (std::int64_t i = 0; i < tensor.shape[axis]; ++i)
    gather(tensor, axis + 1, from + static_cast<std::size_t>(i * tensor.strides[axis]) * element, element,
           to);
}

class TorchStore final : public TensorStore {
 public:
  TorchStore(std::span<const std::byte> file, std::shared_ptr<const void> owner, const std::string& where)
      : TensorStore(where), owner_(std::move(owner)), file_bytes_(file.size()) {
    const ZipArchive archive(file, where);
    const std::string prefix = find_prefix(archive, where);
    check_byte_order(archive, prefix, where);
    const Pickle pickle = unpickle(archive.entries().at(prefix + "data.pkl"), where);
    std::map<std::string, const PickledTensor*>
        tensors;  // a later item of one name replaces the earlier, as in Python
    for (const auto& [key, value] : state_dict(pickle, where).items)
      if (key->as<std::string>() && value->tensor()) tensors[*key->as<std::string>()] = value->tensor();
    for (const auto& [name, tensor] : tensors) add(archive, prefix, name, *tensor);
  }

 protected:
  Tensor read(const std::string& name, const TensorInfo& info) const override {
    const auto& [tensor, data] = stored_.at(name);
    const std::size_t element = size_of(info.dtype);
    const std::byte* first = data + static_cast<std::size_t>(tensor.offset) * element;
    const bool in_place = row_major(tensor) && reinterpret_cast<std::uintptr_t>(first) % element == 0;
    if (in_place) return Tensor::view(const_cast<std::byte*>(first), info.dtype, info.shape, owner_);
    Tensor copy = Tensor::empty(info.dtype, info.shape);
    auto* to = static_cast<std::byte*>(copy.raw());
    gather(tensor, 0, first, element, to);
    return copy;
  }

 private:
  struct Stored {
    PickledTensor tensor;
    const std::byte* data;  ///< of the whole storage
  };

  void add(const ZipArchive& archive, const std::string& prefix, const std::string& full_name,
           const PickledTensor& tensor) {
    constexpr std::string_view wrapper = "module.";
    const std::string name = full_name.starts_with(wrapper) ? full_name.substr(wrapper.size()) : full_name;
    const PickledStorage& storage = tensor.storage;
    const auto record = archive.entries().find(prefix + "data/" + storage.key);
    require(record != archive.entries().end(), "{}: {}: its record data/{} is missing", where(),
            printable(name), printable(storage.key));
    const auto bytes = record->second.size();
    const std::size_t element = size_of(storage.dtype);
    require(bytes % element == 0 && bytes / element == static_cast<std::size_t>(storage.numel),
            "{}: {}: its record data/{} has {} bytes, expected {} elements of {}", where(), printable(name),
            printable(storage.key), bytes, storage.numel, stored_name(storage.dtype));
    // Strides of zero let a few bytes stand for any number of elements; a checkpoint has no use for that.
    require(static_cast<std::uint64_t>(numel(tensor.shape)) <= file_bytes_,
            "{}: {} {} has more elements than the file bytes", where(), printable(name),
            to_string(tensor.shape));
    const std::size_t tensor_bytes = static_cast<std::size_t>(numel(tensor.shape)) * element;
    const bool added = entries_
                           .emplace(name, TensorInfo{storage.dtype, tensor.shape, where(),
                                                     stored_name(storage.dtype), true, tensor_bytes})
                           .second;
    require(added, "{}: two tensors are called {}", where(), printable(name));
    stored_.emplace(name, Stored{tensor, record->second.data()});
  }

  std::shared_ptr<const void> owner_;
  std::size_t file_bytes_;
  std::map<std::string, Stored> stored_;
};

}  // namespace

std::shared_ptr<TensorStore> open_torch(const std::filesystem::path& file) {
  const auto mapped = MappedFile::open(file);
  const auto store = std::make_shared<TorchStore>(mapped->bytes(), mapped, file.string());
  store->verify_when_read(file);
  return store;
}

std::shared_ptr<TensorStore> torch_store(std::span<const std::byte> file, std::shared_ptr<const void> owner,
                                         const std::string& where) {
  return std::make_shared<TorchStore>(file, std::move(owner), where);
}

}  // namespace magi
