// SPDX-License-Identifier: Apache-2.0
// Keys that follow their file: it may change while the server runs.
#pragma once

#include <sys/stat.h>

#include <filesystem>
#include <memory>
#include <mutex>

#include "serve/keys.h"

namespace magi {

class KeyRing {
 public:
  /// An empty path: no keys, everybody may. Throws Error as Keys does: a server does not start with a bad
  /// file.
  explicit KeyRing(const std::filesystem::path& file);

  /// As of now; a caller's own for as long as it holds them.
  std::shared_ptr<const Keys> keys() const;
  /// Reads the file again. A bad one is logged, and the keys stay as they are.
  void reload();
  /// The same if the file is another one than was read last.
  void follow();

 private:
  struct Stamp {
    ino_t inode = 0;
    off_t size = 0;
    std::int64_t seconds = 0, nanoseconds = 0;
    bool operator==(const Stamp&) const = default;
  };
  static Stamp stamp_of(const std::filesystem::path& file);
  void read(const Stamp& stamp);

  const std::filesystem::path file_;
  std::mutex reading_;
  Stamp stamp_;  ///< of what was read last, good or bad
  mutable std::mutex mutex_;
  std::shared_ptr<const Keys> keys_;
};

}  // namespace magi
