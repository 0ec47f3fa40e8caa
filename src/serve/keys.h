// SPDX-License-Identifier: Apache-2.0
// Who may ask: the keys of a file, and cookies that stand in for one of them.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace magi {

class Keys {
 public:
  /// None: everybody may, as the owner "".
  Keys() = default;
  /// A file with one key a line, of at least 16 characters without spaces, and behind it, if wanted, a name
  /// for the log; # begins a comment. Throws Error that names the line, never the key.
  explicit Keys(const std::filesystem::path& file);

  bool required() const { return !keys_.empty(); }
  std::size_t count() const { return keys_.size(); }
  /// The owner that a key stands for, compared in constant time.
  std::optional<std::string> owner_of(std::string_view key) const;
  bool knows(std::string_view owner) const;
  /// For the log: the name in the file, or the owner's beginning.
  std::string name_of(std::string_view owner) const;

 private:
  struct Key {
    std::string owner;  ///< the first half of the key's SHA-256, in hexadecimal
    std::string name;
  };
  std::vector<Key> keys_;
};

/// Cookies that the server can check without keeping any: owner, expiry, and an HMAC over both.
class Sessions {
 public:
  static constexpr std::int64_t kSeconds = 30 * 24 * 3600;

  explicit Sessions(std::string secret) : secret_(std::move(secret)) {}
  std::string issue(const std::string& owner, std::int64_t now) const;
  /// The owner, unless the cookie is expired or was not issued with this secret.
  std::optional<std::string> owner_of(std::string_view cookie, std::int64_t now) const;

 private:
  std::string secret_;
};

/// The value of a cookie in a Cookie header; "" where it has none.
std::string cookie_value(std::string_view header, std::string_view name);

}  // namespace magi
