// SPDX-License-Identifier: Apache-2.0
#include "serve/login_limit.h"

#include <arpa/inet.h>

#include <algorithm>
#include <cstring>

#include "serve/secret.h"

namespace magi {

LoginLimit::LoginLimit() : secret_(random_bytes(16)) {}

int LoginLimit::take(const std::string& address, Clock::time_point now) {
  const std::uint64_t name = name_of(address);
  const std::lock_guard lock(mutex_);
  Entry& entry = entry_of(name);
  const Clock::time_point full = std::max(entry.full, now) + kRefill;
  const auto wait = full - (now + kBurst * kRefill);
  if (wait > Clock::duration::zero())
    return static_cast<int>(std::chrono::ceil<std::chrono::seconds>(wait).count());
  entry.full = full;
  return 0;
}

void LoginLimit::give_back(const std::string& address) {
  const std::uint64_t name = name_of(address);
  const std::lock_guard lock(mutex_);
  entry_of(name).full -= kRefill;
}

std::uint64_t LoginLimit::name_of(const std::string& address) const {
  std::string text = address;
  if (in6_addr v6{}; inet_pton(AF_INET6, address.c_str(), &v6) == 1)
    text = IN6_IS_ADDR_V4MAPPED(&v6) ? address.substr(address.rfind(':') + 1)
                                     : std::string(reinterpret_cast<const char*>(&v6), sizeof v6 / 2);
  std::uint64_t name = 0;
  std::memcpy(&name, hmac_sha256(secret_, text).data(), sizeof name);
  return name;
}

/// Where it has none, the entry of its set that is nearest to innocence makes way: whoever comes from many
/// addresses cannot lock out others, only forget himself.
LoginLimit::Entry& LoginLimit::entry_of(std::uint64_t name) {
  auto& set = sets_[name % kSets];
  for (Entry& entry : set)
    if (entry.address == name) return entry;
  Entry& entry = *std::ranges::min_element(set, {}, &Entry::full);
  entry = {name, {}};
  return entry;
}

}  // namespace magi
