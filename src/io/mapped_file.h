// SPDX-License-Identifier: Apache-2.0
// A file mapped read-only into memory.
#pragma once

#include <cstddef>
#include <filesystem>
#include <memory>
#include <span>

namespace magi {

class MappedFile {
 public:
  /// Throws Error when the file cannot be opened, is not a regular file or cannot be mapped.
  static std::shared_ptr<const MappedFile> open(const std::filesystem::path& path);
  ~MappedFile();
  MappedFile(const MappedFile&) = delete;
  MappedFile& operator=(const MappedFile&) = delete;

  /// The whole file. At least 64 readable bytes follow, as after any host tensor.
  std::span<const std::byte> bytes() const { return {data_, size_}; }

 private:
  MappedFile() = default;

  std::byte* data_ = nullptr;
  std::size_t size_ = 0;
  std::size_t reserved_ = 0;
};

/// Takes the pages of all mapped files out of resident memory; what is touched again is read again. Loaders
/// call it when a layer is packed, so that a checkpoint never counts twice.
void release_mapped_pages();

}  // namespace magi
