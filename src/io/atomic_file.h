// SPDX-License-Identifier: Apache-2.0
// A file that appears complete or not at all.
#pragma once

#include <cstddef>
#include <filesystem>
#include <string>

namespace magi {

/// Writes a file without a name (where the file system has none such: NAME.partial-PID-N) beside the target;
/// commit() syncs it, names it and renames it over the target. Without commit() (an error, a cancelled run)
/// it is removed. A symbolic link's file is written, not the link; what is there and no file (a device, a
/// pipe) is refused, since it would be replaced. Every failure throws Error with the system's reason.
class AtomicFile {
 public:
  explicit AtomicFile(std::filesystem::path target);
  ~AtomicFile();
  AtomicFile(const AtomicFile&) = delete;
  AtomicFile& operator=(const AtomicFile&) = delete;

  void write(const void* data, std::size_t bytes);
  void commit();
  /// For writers that seek and read back. Stays owned here.
  int descriptor() const { return fd_; }

 private:
  [[noreturn]] void fail_with_errno() const;

  std::filesystem::path target_;
  std::filesystem::path partial_;
  int fd_ = -1;
};

}  // namespace magi
