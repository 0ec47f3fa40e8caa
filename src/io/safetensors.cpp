// SPDX-License-Identifier: Apache-2.0
#include "io/safetensors.h"

#include <bit>
#include <cstring>

#include "io/atomic_file.h"
#include "io/file_reader.h"
#include "io/mapped_file.h"
#include "io/safetensors_writer.h"

namespace magi {
namespace {

static_assert(std::endian::native == std::endian::little, "checkpoints are little endian and used in place");

class SafetensorsStore final : public TensorStore {
 public:
  SafetensorsStore(std::span<const std::byte> file, std::shared_ptr<const void> owner,
                   const std::string& where)
      : TensorStore(where), file_(file), owner_(std::move(owner)) {
    for (auto& [name, entry] : parse_safetensors_header(file, where).tensors) {
      entries_.emplace(name, std::move(entry.info));
      offsets_.emplace(name, entry.offset);
    }
  }

 protected:
  Tensor read(const std::string& name, const TensorInfo& info) const override {
    const std::byte* data = file_.data() + offsets_.at(name);
    if (reinterpret_cast<std::uintptr_t>(data) % size_of(info.dtype) == 0)
      return Tensor::view(const_cast<std::byte*>(data), info.dtype, info.shape, owner_);
    Tensor copy = Tensor::empty(info.dtype, info.shape);
    std::memcpy(copy.raw(), data, info.bytes);
    return copy;
  }

 private:
  std::span<const std::byte> file_;
  std::shared_ptr<const void> owner_;
  std::map<std::string, std::size_t> offsets_;
};

/// Reads a tensor whenever it is asked for.
class ReadingStore final : public TensorStore {
 public:
  ReadingStore(const std::filesystem::path& file, bool direct)
      : TensorStore(file.string()), reader_(FileReader::open(file, direct)) {
    const auto mapped = MappedFile::open(file);
    for (auto& [name, entry] : parse_safetensors_header(mapped->bytes(), where()).tensors) {
      entries_.emplace(name, std::move(entry.info));
      offsets_.emplace(name, entry.offset);
    }
    verify_when_read(file);
  }

 protected:
  Tensor read(const std::string& name, const TensorInfo& info) const override {
    return reader_->read(offsets_.at(name), info.dtype, info.shape);
  }

 private:
  std::shared_ptr<const FileReader> reader_;
  std::map<std::string, std::size_t> offsets_;
};

}  // namespace

std::shared_ptr<TensorStore> open_safetensors(const std::filesystem::path& file, Access access) {
  if (access != Access::mapped) return std::make_shared<ReadingStore>(file, access == Access::direct);
  const auto mapped = MappedFile::open(file);
  const auto store = std::make_shared<SafetensorsStore>(mapped->bytes(), mapped, file.string());
  store->verify_when_read(file);
  return store;
}

std::shared_ptr<TensorStore> safetensors_store(std::span<const std::byte> file,
                                               std::shared_ptr<const void> owner, const std::string& where) {
  return std::make_shared<SafetensorsStore>(file, std::move(owner), where);
}

std::map<std::string, std::string> safetensors_metadata(const std::filesystem::path& file) {
  return parse_safetensors_header(MappedFile::open(file)->bytes(), file.string()).metadata;
}

void write_safetensors(const std::filesystem::path& file,
                       const std::vector<std::pair<std::string, Tensor>>& tensors,
                       const std::map<std::string, std::string>& metadata) {
  std::vector<TensorEntry> entries;
  for (const auto& [name, tensor] : tensors) {
    require(tensor.defined() && tensor.contiguous() && tensor.device().kind == Device::Kind::cpu,
            "cannot write tensor {}: contiguous host tensors only", name);
    entries.push_back({name, tensor.dtype(), tensor.shape()});
  }
  const std::string header = safetensors_header(entries, metadata, 8);
  const auto length = static_cast<std::uint64_t>(header.size());
  AtomicFile out(file);
  out.write(&length, sizeof length);
  out.write(header.data(), header.size());
  for (const auto& [name, tensor] : tensors) out.write(tensor.raw(), tensor.bytes());
  out.commit();
}

}  // namespace magi
