// SPDX-License-Identifier: Apache-2.0
#include "io/safetensors_writer.h"

#include <nlohmann/json.hpp>

#include "io/tensor_store.h"

namespace magi {

std::string safetensors_header(const std::vector<TensorEntry>& tensors,
                               const std::map<std::string, std::string>& metadata, std::size_t align) {
  nlohmann::ordered_json header = nlohmann::ordered_json::object();
  if (!metadata.empty()) header["__metadata__"] = metadata;
  std::size_t offset = 0;
  for (const TensorEntry& tensor : tensors) {
    require(tensor.name != "__metadata__" && !header.contains(tensor.name),
            "cannot write two tensors called {}", tensor.name);
    header[tensor.name] = {{"dtype", stored_name(tensor.dtype)},
                           {"shape", tensor.shape},
                           {"data_offsets", {offset, offset + tensor.bytes()}}};
    offset += tensor.bytes();
  }
  try {
    std::string text = header.dump();
    const std::size_t begin = sizeof(std::uint64_t);
    text.resize((begin + text.size() + align - 1) / align * align - begin, ' ');
    return text;
  } catch (const nlohmann::json::exception&) {
    fail("cannot write a safetensors header: a name or its metadata is not valid UTF-8");
  }
}

SafetensorsWriter::SafetensorsWriter(const std::filesystem::path& file,
                                     const std::vector<TensorEntry>& tensors,
                                     const std::map<std::string, std::string>& metadata)
    : name_(file.string()), out_(file) {
  const std::string header = safetensors_header(tensors, metadata, kAlign);
  const auto length = static_cast<std::uint64_t>(header.size());
  for (const TensorEntry& tensor : tensors) expected_ += tensor.bytes();
  expected_ += sizeof length + header.size();
  write(&length, sizeof length);
  write(header.data(), header.size());
}

void SafetensorsWriter::write(const void* data, std::size_t bytes) {
  out_.write(data, bytes);
  hash_.add(data, bytes);
  written_ += bytes;
}

NativeFile SafetensorsWriter::commit() {
  require(written_ == expected_, "{}: {} of {} bytes written", name_, written_, expected_);
  out_.commit();
  return {written_, hash_.hex()};
}

}  // namespace magi
