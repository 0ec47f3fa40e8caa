// SPDX-License-Identifier: Apache-2.0
// What this process holds of a memory: the host's, or a device's. Whoever allocates weights, buffers or
// scratch enters it here, so a budget is a limit that allocations meet, and a peak is a figure, not a guess.
#pragma once

#include <atomic>
#include <cstddef>
#include <limits>
#include <string>
#include <utility>

#include "core/tensor.h"

namespace magi {

/// Bytes of host memory that the system can give without swapping others out, its free swap space included.
std::size_t available_host_bytes();

/// A GPU's context, kernels and library workspaces, which no ledger shows.
inline constexpr std::size_t kDeviceOverhead = std::size_t{1} << 30;

/// "2.20 MiB", "640 MiB", "212.45 GiB"
std::string memory_text(std::size_t bytes);

/// All members may be called from several threads.
class MemoryLedger {
 public:
  static constexpr std::size_t kNoLimit = std::numeric_limits<std::size_t>::max();

  /// The ledger of the memory that `device` computes in.
  static MemoryLedger& of(Device device);

  /// Enters `bytes`; throws Error, and enters nothing, where the limit would be passed, or where a large
  /// piece of host memory is asked for that is not there: the system would give it, and kill this process for
  /// using it.
  void take(std::size_t bytes);
  void give_back(std::size_t bytes) noexcept { used_.fetch_sub(bytes); }

  std::size_t used_bytes() const { return used_.load(); }
  /// Highest use since the last reset_peak().
  std::size_t peak_bytes() const { return peak_.load(); }
  void reset_peak() { peak_.store(used_.load()); }

  std::size_t limit_bytes() const { return limit_.load(); }
  /// Counts what is held already.
  void set_limit(std::size_t bytes) { limit_.store(bytes); }

 private:
  std::atomic<std::size_t> used_{0}, peak_{0}, limit_{kNoLimit};
  Device device_;
};

/// Bytes entered for as long as it lives.
class LedgerEntry {
 public:
  LedgerEntry() = default;
  LedgerEntry(Device device, std::size_t bytes) : ledger_(&MemoryLedger::of(device)), bytes_(bytes) {
    ledger_->take(bytes);
  }
  LedgerEntry(LedgerEntry&& other) noexcept { *this = std::move(other); }
  LedgerEntry& operator=(LedgerEntry&& other) noexcept {
    std::swap(ledger_, other.ledger_);
    std::swap(bytes_, other.bytes_);
    return *this;
  }
  ~LedgerEntry() {
    if (ledger_) ledger_->give_back(bytes_);
  }

 private:
  MemoryLedger* ledger_ = nullptr;
  std::size_t bytes_ = 0;
};

}  // namespace magi
