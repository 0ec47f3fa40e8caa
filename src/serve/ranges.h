// SPDX-License-Identifier: Apache-2.0
// Range headers (RFC 9110, section 14).
#pragma once

#include <cstdint>
#include <optional>
#include <string>

namespace magi {

struct ByteRange {
  std::int64_t first = 0, last = 0;  ///< both included
};

/// The one range that a header asks for of `size` bytes. Nothing: the whole is to be sent, because the header
/// is empty, of another unit, or asks for several ranges. Throws ApiError 416 when it is malformed or asks
/// for what is not there.
std::optional<ByteRange> parse_range(const std::string& header, std::int64_t size);

}  // namespace magi
