// SPDX-License-Identifier: Apache-2.0
// How often an address may be wrong about a key. A few kilobytes, however many addresses there are.
#pragma once

#include <array>
#include <chrono>
#include <cstdint>
#include <mutex>
#include <string>

namespace magi {

/// kBurst wrong keys at once, then one every kRefill (a bucket of tokens, kept as the time at which it will
/// be full). IPv6 addresses count by their /64, which is one subscriber.
class LoginLimit {
 public:
  using Clock = std::chrono::steady_clock;
  static constexpr int kBurst = 10;
  static constexpr std::chrono::seconds kRefill{6};

  LoginLimit();

  /// Takes one try of the address, before its key is looked at. 0: go ahead; else there is none left, and the
  /// seconds until there is.
  int take(const std::string& address, Clock::time_point now = Clock::now());
  /// The key was right.
  void give_back(const std::string& address);

 private:
  static constexpr std::size_t kWays = 4, kSets = 512;
  struct Entry {
    std::uint64_t address = 0;
    Clock::time_point full;
  };
  std::uint64_t name_of(const std::string& address) const;
  Entry& entry_of(std::uint64_t name);

  const std::string secret_;  ///< so that nobody can choose addresses that share a set
  std::mutex mutex_;
  std::array<std::array<Entry, kWays>, kSets> sets_;
};

}  // namespace magi
