// SPDX-License-Identifier: Apache-2.0
#include "core/memory_ledger.h"

#include <fstream>
#include <map>
#include <mutex>

namespace magi {
namespace {

constexpr std::size_t kLarge = std::size_t{64}
                               << 20;  ///< takes far longer to fill than to ask the system about

}  // namespace

std::size_t available_host_bytes() {
  std::ifstream in("/proc/meminfo");
  std::string name, unit;
  std::size_t bytes = 0;
  for (std::size_t kilobytes = 0; in >> name >> kilobytes; std::getline(in, unit))
    if (name == "MemAvailable:" || name == "SwapFree:") bytes += kilobytes * 1024;
  return bytes;
}

std::string memory_text(std::size_t bytes) {
  const double mib = static_cast<double>(bytes) / (1 << 20);
  return mib < 10     ? fmt::format("{:.2f} MiB", mib)
         : mib < 1000 ? fmt::format("{:.0f} MiB", mib)
                      : fmt::format("{:.2f} GiB", mib / 1024);
}

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
  const bool host = device_.kind == Device::Kind::cpu;
  if (host && bytes >= kLarge) {
    const std::size_t there = available_host_bytes();
    require(bytes <= there || there == 0,
            "out of memory: {} MiB are needed, {} MiB are free; a smaller or shorter clip needs less",
            bytes >> 20, there >> 20);
  }
  const std::size_t used = used_.fetch_add(bytes) + bytes;
  if (const std::size_t limit = limit_.load(); used > limit) {
    used_.fetch_sub(bytes);
    fail("the memory budget is spent: {} MiB more are needed, {} of {} MiB are in use; allow more with {}",
         (bytes >> 20) + 1, (used - bytes) >> 20, limit >> 20, host ? "--ram" : "--vram");
  }
  for (std::size_t peak = peak_.load(); used > peak && !peak_.compare_exchange_weak(peak, used);) {
  }
}

}  // namespace magi
