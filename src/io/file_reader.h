// SPDX-License-Identifier: Apache-2.0
// Ranges of a file read into memory, by several threads. Unlike a mapping, a file that shrinks meanwhile is
// an Error and not a signal, and what was read leaves memory with its tensor.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>

#include "core/tensor.h"

namespace magi {

class FileReader {
 public:
  /// `direct`: past the system's file cache where it can be, for files that the cache would not hold until
  /// their next use. Throws Error when it cannot be opened, or is no regular file.
  static std::shared_ptr<const FileReader> open(const std::filesystem::path& path, bool direct = false);
  ~FileReader();
  FileReader(const FileReader&) = delete;
  FileReader& operator=(const FileReader&) = delete;

  /// As it was when the file was opened.
  std::uint64_t size() const { return size_; }
  const std::filesystem::path& path() const { return path_; }
  /// Throws Error when the file ends too early or cannot be read. Direct reading needs `to` at the same place
  /// within a page as `offset`; otherwise it goes through the cache. Threads: OpenMP's current number.
  void read(std::uint64_t offset, std::size_t bytes, std::byte* to) const;
  /// The same into new memory.
  Tensor read(std::uint64_t offset, DType dtype, Shape shape) const;

 private:
  explicit FileReader(std::filesystem::path path) : path_(std::move(path)) {}
  void read_range(int fd, std::uint64_t offset, std::size_t bytes, std::byte* to) const;

  std::filesystem::path path_;
  std::uint64_t size_ = 0;
  int cached_ = -1, direct_ = -1;
};

}  // namespace magi
