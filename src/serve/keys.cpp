// SPDX-License-Identifier: Apache-2.0
#include "serve/keys.h"

#include <charconv>
#include <sstream>

#include "core/error.h"
#include "core/log.h"
#include "io/read_file.h"
#include "serve/secret.h"

namespace magi {
namespace {

constexpr std::size_t kShortest = 16;
constexpr std::size_t kOwnerCharacters = 32;
constexpr std::size_t kShownCharacters = 8;
constexpr std::size_t kMaxFile = 1 << 20;

std::string owner_for(std::string_view key) {
  return to_hex(sha256(key)).substr(0, kOwnerCharacters);
}

}  // namespace

Keys::Keys(const std::filesystem::path& file) {
  namespace fs = std::filesystem;
  std::istringstream in(read_file(file, kMaxFile));
  std::error_code ignored;
  if ((fs::status(file, ignored).permissions() & (fs::perms::group_read | fs::perms::others_read)) !=
      fs::perms::none)
    log_warning("{}: others can read the keys; chmod 600", file.string());
  std::string line;
  for (int number = 1; std::getline(in, line); ++number) {
    std::istringstream words(line.substr(0, line.find('#')));
    std::string key, name, more;
    if (!(words >> key)) continue;
    require(key.size() >= kShortest, "{}:{}: a key of fewer than {} characters can be guessed", file.string(),
            number, kShortest);
    words >> name;
    require(!(words >> more), "{}:{}: expected a key and a name, found more", file.string(), number);
    keys_.push_back({owner_for(key), name});
  }
  require(!keys_.empty(), "{}: there is no key in it", file.string());
}

std::optional<std::string> Keys::owner_of(std::string_view key) const {
  const std::string owner = owner_for(key);
  const Key* found = nullptr;
  for (const Key& known : keys_)
    if (equal_secrets(known.owner, owner)) found = &known;  // no early end: all keys take the same time
  return found ? std::optional(found->owner) : std::nullopt;
}

bool Keys::knows(std::string_view owner) const {
  if (!required()) return owner.empty();
  bool found = false;
  for (const Key& known : keys_) found |= equal_secrets(known.owner, owner);
  return found;
}

std::string Keys::name_of(std::string_view owner) const {
  for (const Key& known : keys_)
    if (known.owner == owner && !known.name.empty()) return known.name;
  return std::string(owner.substr(0, kShownCharacters));
}

std::string Sessions::issue(const std::string& owner, std::int64_t now) const {
  const std::string content = fmt::format("{}.{}", owner, now + kSeconds);
  return content + "." + to_hex(hmac_sha256(secret_, content));
}

std::optional<std::string> Sessions::owner_of(std::string_view cookie, std::int64_t now) const {
  const std::size_t dot = cookie.rfind('.');
  if (dot == std::string_view::npos) return std::nullopt;
  const std::string_view content = cookie.substr(0, dot);
  if (!equal_secrets(to_hex(hmac_sha256(secret_, content)), cookie.substr(dot + 1))) return std::nullopt;
  const std::size_t middle = content.find('.');
  std::int64_t expiry = 0;
  std::from_chars(content.data() + middle + 1, content.data() + content.size(), expiry);
  return expiry > now ? std::optional(std::string(content.substr(0, middle))) : std::nullopt;
}

std::string cookie_value(std::string_view header, std::string_view name) {
  while (!header.empty()) {
    const std::size_t end = std::min(header.find(';'), header.size());
    std::string_view pair = header.substr(0, end);
    header.remove_prefix(std::min(end + 1, header.size()));
    pair.remove_prefix(std::min(pair.find_first_not_of(' '), pair.size()));
    if (pair.size() > name.size() && pair.starts_with(name) && pair[name.size()] == '=')
      return std::string(pair.substr(name.size() + 1));
  }
  return "";
}

}  // namespace magi
