// SPDX-License-Identifier: Apache-2.0
// The loaded parts of a checkpoint (text encoder, preview, …): one at a time, so that peak memory follows the
// largest stage; or as many as memory holds, so that a server loads each once.
#pragma once

#include <cstddef>
#include <cstdint>
#include <exception>
#include <filesystem>
#include <map>
#include <memory>
#include <mutex>
#include <typeindex>
#include <utility>

#include "core/tensor.h"

namespace magi {

/// Memory that new weights may take: what the system calls available, or what is free on the GPU.
std::size_t available_bytes(Device device);

/// Sum of the files' sizes: a part's weights, roughly. 0 for what is not there.
std::size_t bytes_on_disk(const std::filesystem::path& path);

/// May be shared by threads, as long as no two ask for the same part.
class PartCache {
 public:
  /// `keep_all`: parts make way only when another one needs their memory, those unused for longest first.
  PartCache(Device device, bool keep_all) : device_(device), keep_all_(keep_all) {}

  /// The part of type T computing in `dtype`, made by `load` unless it is here. `weights`: its files. What
  /// could not be loaded is not tried again before forget_failures().
  template <typename T, typename Load>
  std::shared_ptr<T> get(DType dtype, const std::filesystem::path& weights, Load load) {
    const Key key{typeid(T), dtype};
    if (auto known = find(key)) return std::static_pointer_cast<T>(known);
    make_room(bytes_on_disk(weights));
    std::shared_ptr<T> part;
    try {
      part = std::make_shared<T>(load());
    } catch (const Cancelled&) {
      throw;
    } catch (...) {
      failed(key, std::current_exception());
      throw;
    }
    insert(key, part);
    return part;
  }

  /// The part where it is here, else null.
  template <typename T>
  std::shared_ptr<T> known(DType dtype) {
    return has<T>(dtype) ? std::static_pointer_cast<T>(find({typeid(T), dtype})) : nullptr;
  }
  /// Lets go of the part, if it is here.
  template <typename T>
  void drop(DType dtype) {
    const std::lock_guard lock(mutex_);
    parts_.erase({typeid(T), dtype});
  }
  template <typename T>
  bool has(DType dtype) {
    const std::lock_guard lock(mutex_);
    return parts_.contains({typeid(T), dtype});
  }
  /// Whether weights of so many bytes on disk fit beside what is loaded.
  bool fits(std::size_t bytes) const;

  void forget_failures();
  /// Lets go of every part.
  void clear();

 private:
  using Key = std::pair<std::type_index, DType>;
  struct Entry {
    std::shared_ptr<void> part;
    std::uint64_t last_use = 0;
  };

  std::shared_ptr<void> find(const Key& key);
  void insert(const Key& key, std::shared_ptr<void> part);
  void failed(const Key& key, std::exception_ptr error);
  void make_room(std::size_t bytes);

  Device device_;
  bool keep_all_;
  std::mutex mutex_;
  std::uint64_t uses_ = 0;
  std::map<Key, Entry> parts_;
  std::map<Key, std::exception_ptr> failed_;
};

}  // namespace magi
