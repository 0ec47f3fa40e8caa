// SPDX-License-Identifier: Apache-2.0
#include "core/memory_ledger.h"

#include <map>
#include <mutex>

namespace magi {

MemoryLedger& MemoryLedger::of(Device device) {
  static MemoryLedger* const host = new MemoryLedger;  // never destroyed: tensors may outlive static objects
  if (device.kind == Device::Kind::cpu) return *host;
  static auto* const ledgers = new std::map<int, MemoryLedger>;
  static std::mutex mutex;
  const std::scoped_lock lock(mutex);
  MemoryLedger& ledger = (*ledgers)[device.index];
  ledger.device_ = device;
  return ledger;
}

void MemoryLedger::take(std::size_t bytes) {
  const std::size_t used = used_.fetch_add(bytes) + bytes;
  if (const std::size_t limit = limit_.load(); used > limit) {
    used_.fetch_sub(bytes);
    const bool host = device_.kind == Device::Kind::cpu;
    fail("the memory budget is spent: {} MiB more are needed, {} of {} MiB are in use; allow more with {}",
         (bytes >> 20) + 1, (used - bytes) >> 20, limit >> 20, host ? "--ram" : "--vram");
  }
  for (std::size_t peak = peak_.load(); used > peak && !peak_.compare_exchange_weak(peak, used);) {
  }
}

}  // namespace magi
