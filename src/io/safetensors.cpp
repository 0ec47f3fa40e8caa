// SPDX-License-Identifier: Apache-2.0
#include "io/safetensors.h"

#include <bit>
#include <cstring>
#include <nlohmann/json.hpp>

#include "io/atomic_file.h"
#include "io/file_reader.h"
#include "io/mapped_file.h"

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
  }

 protected:
  Tensor read(const std::string& name, const TensorInfo& info) const override {
    return reader_->read(offsets_.at(name), info.dtype, info.shape);
  }

 private:
  std::shared_ptr<const FileReader> reader_;
  std::map<std::string, std::size_t> offsets_;
};

std::string header_text(const std::vector<std::pair<std::string, Tensor>>& tensors,
                        const std::map<std::string, std::string>& metadata) {
  nlohmann::ordered_json header = nlohmann::ordered_json::object();
  if (!metadata.empty()) header["__metadata__"] = metadata;
  std::size_t offset = 0;
  for (const auto& [name, tensor] : tensors) {
    require(tensor.defined() && tensor.contiguous() && tensor.device().kind == Device::Kind::cpu,
            "cannot write tensor {}: contiguous host tensors only", name);
    require(name != "__metadata__" && !header.contains(name), "cannot write two tensors called {}", name);
    header[name] = {{"dtype", stored_name(tensor.dtype())},
                    {"shape", tensor.shape()},
                    {"data_offsets", {offset, offset + tensor.bytes()}}};
    offset += tensor.bytes();
  }
  try {
    std::string text = header.dump();
    text.resize((text.size() + 7) / 8 * 8, ' ');
    return text;
  } catch (const nlohmann::json::exception&) {
    fail("cannot write a safetensors header: a name or its metadata is not valid UTF-8");
  }
}

}  // namespace

std::shared_ptr<TensorStore> open_safetensors(const std::filesystem::path& file, Access access) {
  if (access != Access::mapped) return std::make_shared<ReadingStore>(file, access == Access::direct);
  const auto mapped = MappedFile::open(file);
  return safetensors_store(mapped->bytes(), mapped, file.string());
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
  const std::string header = header_text(tensors, metadata);
  const auto length = static_cast<std::uint64_t>(header.size());
  AtomicFile out(file);
  out.write(&length, sizeof length);
  out.write(header.data(), header.size());
  for (const auto& [name, tensor] : tensors) out.write(tensor.raw(), tensor.bytes());
  out.commit();
}

}  // namespace magi
