// SPDX-License-Identifier: Apache-2.0
#include "serve/key_ring.h"

#include <nlohmann/json.hpp>

#include "core/error.h"
#include "core/log.h"
#include "serve/json_log.h"

namespace magi {

KeyRing::KeyRing(const std::filesystem::path& file)
    : file_(file),
      stamp_(stamp_of(file)),
      keys_(std::make_shared<const Keys>(file.empty() ? Keys() : Keys(file))) {}

std::shared_ptr<const Keys> KeyRing::keys() const {
  const std::lock_guard lock(mutex_);
  return keys_;
}

void KeyRing::reload() {
  const std::lock_guard lock(reading_);
  read(stamp_of(file_));
}

void KeyRing::follow() {
  const std::lock_guard lock(reading_);
  const Stamp now = stamp_of(file_);
  if (now != stamp_) read(now);
}

/// The stamp is from before reading: a file that is still being written is another one next time.
void KeyRing::read(const Stamp& stamp) {
  if (file_.empty()) return;
  stamp_ = stamp;
  try {
    auto keys = std::make_shared<const Keys>(file_);
    const std::size_t count = keys->count();
    {
      const std::lock_guard lock(mutex_);
      keys_ = std::move(keys);
    }
    json_log("keys", {{"count", count}});
  } catch (const Error& error) {
    log_warning("{}; the keys from before stay", error.what());
  }
}

/// All zero: there is none.
KeyRing::Stamp KeyRing::stamp_of(const std::filesystem::path& file) {
  struct stat info {};
  if (file.empty() || stat(file.c_str(), &info) != 0) return {};
  return {info.st_ino, info.st_size, info.st_mtim.tv_sec, info.st_mtim.tv_nsec};
}

}  // namespace magi
