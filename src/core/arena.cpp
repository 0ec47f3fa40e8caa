// SPDX-License-Identifier: Apache-2.0
#include "core/arena.h"

#include <sys/mman.h>

#include <algorithm>
#include <cstring>
#include <iterator>
#include <map>
#include <optional>

#include "core/memory_ledger.h"

namespace magi {
namespace {

constexpr std::size_t kAlignment = 256;
constexpr std::size_t kSlack = 64;  // vector loads may run past a tensor's last element
constexpr std::size_t kPage = 4096;

std::size_t round_up(std::size_t n, std::size_t multiple) {
  return (n + multiple - 1) / multiple * multiple;
}

}  // namespace

struct Arena::Pool {
  std::shared_ptr<const void> owner;
  char* memory = nullptr;
  std::size_t capacity = 0;
  Device device;
  bool poison = false;
  std::size_t used = 0;
  std::size_t peak = 0;
  std::map<std::size_t, std::size_t> free_blocks;  // offset → bytes, neighbours always merged
  // Of a host arena, whose address space costs nothing: what its pages may hold, as entered in the ledger.
  std::optional<std::size_t> committed;

  ~Pool() {
    if (committed) MemoryLedger::of(device).give_back(*committed);
  }

  void commit(std::size_t end) {
    if (!committed || end <= *committed) return;
    MemoryLedger::of(device).take(end - *committed);
    committed = end;
  }

  /// The highest end of any tensor that is there now.
  std::size_t end_of_use() const {
    const bool ends_free =
        !free_blocks.empty() && free_blocks.rbegin()->first + free_blocks.rbegin()->second == capacity;
    return ends_free ? free_blocks.rbegin()->first : capacity;
  }

  std::size_t take(std::size_t bytes) {
    for (auto block = free_blocks.begin(); block != free_blocks.end(); ++block) {
      if (block->second < bytes) continue;
      const std::size_t offset = block->first;
      const std::size_t rest = block->second - bytes;
      commit(offset + bytes);
      free_blocks.erase(block);
      if (rest) free_blocks.emplace(offset + bytes, rest);
      used += bytes;
      peak = std::max(peak, offset + bytes);
      return offset;
    }
    fail("scratch memory exhausted: {} MiB more are needed, {} of {} MiB are in use", bytes >> 20, used >> 20,
         capacity >> 20);
  }

  void give_back(std::size_t offset, std::size_t bytes) {
    used -= bytes;
    auto block = free_blocks.emplace(offset, bytes).first;
    auto next = std::next(block);
    if (next != free_blocks.end() && block->first + block->second == next->first) {
      block->second += next->second;
      free_blocks.erase(next);
    }
    if (block == free_blocks.begin()) return;
    auto previous = std::prev(block);
    if (previous->first + previous->second == block->first) {
      previous->second += block->second;
      free_blocks.erase(block);
    }
  }
};

Arena Arena::on_host(std::size_t capacity_bytes) {
  const std::size_t capacity = round_up(std::max<std::size_t>(capacity_bytes, 1), kPage);
  void* memory =
      mmap(nullptr, capacity, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  require(memory != MAP_FAILED,
          "cannot reserve {} MiB of address space for scratch memory; ulimit -v may bound it",
          capacity >> 20);
  std::shared_ptr<const void> owner(memory,
                                    [capacity](const void* p) { munmap(const_cast<void*>(p), capacity); });
  Arena arena = over(memory, capacity, Device{}, std::move(owner));
  arena.pool_->committed = 0;
  return arena;
}

Arena Arena::over(void* memory, std::size_t capacity_bytes, Device device,
                  std::shared_ptr<const void> owner) {
  auto pool = std::make_shared<Pool>();
  pool->owner = std::move(owner);
  pool->memory = static_cast<char*>(memory);
  pool->capacity = capacity_bytes;
  pool->device = device;
  pool->free_blocks.emplace(0, capacity_bytes);
  return Arena(std::move(pool));
}

Arena Arena::counting(Device device) {
  return over(nullptr, std::size_t{1} << 62, device, nullptr);
}

Tensor Arena::alloc(DType dtype, Shape shape) {
  const std::size_t bytes = static_cast<std::size_t>(numel(shape)) * size_of(dtype);
  const std::size_t padded = round_up(bytes + kSlack, kAlignment);
  const std::size_t offset = pool_->take(padded);
  char* data = pool_->memory ? pool_->memory + offset : nullptr;
  if (pool_->poison && data && pool_->device.kind == Device::Kind::cpu) std::memset(data, 0xff, padded);
  std::shared_ptr<const void> lease(
      data, [pool = pool_, offset, padded](const void*) { pool->give_back(offset, padded); });
  return Tensor::view(data, dtype, std::move(shape), std::move(lease), pool_->device);
}

std::size_t Arena::used_bytes() const {
  return pool_->used;
}
std::size_t Arena::peak_bytes() const {
  return pool_->peak;
}
std::size_t Arena::capacity_bytes() const {
  return pool_->capacity;
}
bool Arena::counts_only() const {
  return pool_->memory == nullptr;
}
Device Arena::device() const {
  return pool_->device;
}
void Arena::poison(bool on) {
  pool_->poison = on;
}

void Arena::reset_peak() {
  pool_->peak = pool_->end_of_use();
}

void Arena::trim() {
  if (!pool_->memory || pool_->device.kind != Device::Kind::cpu) return;
  for (const auto& [offset, bytes] : pool_->free_blocks) {
    const std::size_t first = round_up(offset, kPage);
    const std::size_t end = std::min((offset + bytes) / kPage * kPage, round_up(pool_->peak, kPage));
    if (end > first) madvise(pool_->memory + first, end - first, MADV_DONTNEED);
  }
  if (!pool_->committed) return;
  const std::size_t kept = std::min(*pool_->committed, pool_->end_of_use());
  MemoryLedger::of(pool_->device).give_back(*pool_->committed - kept);
  pool_->committed = kept;
}

}  // namespace magi
