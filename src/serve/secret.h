// SPDX-License-Identifier: Apache-2.0
// Random bytes, hashes and comparisons whose time tells nothing.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace magi {

/// From the system's generator. Throws Error when it has none.
std::string random_bytes(std::size_t count);
std::string to_hex(std::string_view bytes);
/// 32 bytes.
std::string sha256(std::string_view data);
std::string hmac_sha256(std::string_view key, std::string_view data);
/// In time that depends on the lengths alone.
bool equal_secrets(std::string_view a, std::string_view b);
/// Standard alphabet with padding. Throws Error for anything else.
std::string from_base64(std::string_view text);
std::string to_base64(std::string_view bytes);

}  // namespace magi
