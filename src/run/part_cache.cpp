// SPDX-License-Identifier: Apache-2.0
#include "run/part_cache.h"

#include <algorithm>

#include "core/memory_ledger.h"
#include "ops/devices.h"

namespace magi {
namespace {

// Weights laid out for the kernels take a little more than their files, and a stage needs scratch besides.
constexpr double kMargin = 1.25;

}  // namespace

std::size_t available_bytes(Device device) {
  if (device.kind == Device::Kind::cuda) {
    const auto devices = cuda_devices();
    const auto index = static_cast<std::size_t>(device.index);
    return index < devices.size() ? devices[index].free_bytes : 0;
  }
  return available_host_bytes();
}

std::size_t bytes_on_disk(const std::filesystem::path& path) {
  std::error_code ignored;
  if (std::filesystem::is_regular_file(path, ignored)) return std::filesystem::file_size(path, ignored);
  std::size_t bytes = 0;
  for (const auto& entry : std::filesystem::directory_iterator(path, ignored))
    if (entry.is_regular_file(ignored)) bytes += entry.file_size(ignored);
  return bytes;
}

std::shared_ptr<void> PartCache::find(const Key& key) {
  const std::lock_guard lock(mutex_);
  if (const auto failed = failed_.find(key); failed != failed_.end()) std::rethrow_exception(failed->second);
  const auto found = parts_.find(key);
  if (found == parts_.end()) return nullptr;
  found->second.last_use = ++uses_;
  return found->second.part;
}

void PartCache::insert(const Key& key, std::shared_ptr<void> part) {
  const std::lock_guard lock(mutex_);
  parts_[key] = {std::move(part), ++uses_};
}

void PartCache::failed(const Key& key, std::exception_ptr error) {
  const std::lock_guard lock(mutex_);
  failed_[key] = std::move(error);
}

void PartCache::make_room(std::size_t bytes) {
  const std::lock_guard lock(mutex_);
  if (!keep_all_) parts_.clear();
  while (!parts_.empty() && !fits(bytes)) {
    const auto oldest =
        std::ranges::min_element(parts_, {}, [](const auto& entry) { return entry.second.last_use; });
    parts_.erase(oldest);  // whoever computes with it holds it still
  }
}

bool PartCache::fits(std::size_t bytes) const {
  return static_cast<double>(available_bytes(device_)) >= kMargin * static_cast<double>(bytes);
}

void PartCache::forget_failures() {
  const std::lock_guard lock(mutex_);
  failed_.clear();
}

void PartCache::clear() {
  const std::lock_guard lock(mutex_);
  parts_.clear();
}

}  // namespace magi
