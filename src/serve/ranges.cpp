// SPDX-License-Identifier: Apache-2.0
#include "serve/ranges.h"

#include <algorithm>
#include <charconv>

#include "serve/api_error.h"

namespace magi {
namespace {

[[noreturn]] void refuse(std::int64_t size) {
  throw ApiError(416, "invalid_range", fmt::format("expected a range of bytes 0-{}", size - 1), "Range");
}

std::int64_t number(std::string_view text, std::int64_t size) {
  std::int64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size() || text[0] == '-') refuse(size);
  return value;
}

}  // namespace

std::optional<ByteRange> parse_range(const std::string& header, std::int64_t size) {
  constexpr std::string_view kUnit = "bytes=";
  if (!header.starts_with(kUnit) || header.find(',') != std::string::npos) return std::nullopt;
  std::string_view range = std::string_view(header).substr(kUnit.size());
  range.remove_prefix(std::min(range.find_first_not_of(' '), range.size()));
  range = range.substr(0, range.find_last_not_of(' ') + 1);
  const std::size_t dash = range.find('-');
  if (dash == std::string_view::npos || range.size() == 1) refuse(size);
  const std::string_view first = range.substr(0, dash), last = range.substr(dash + 1);
  if (first.empty()) {
    const std::int64_t suffix = number(last, size);
    if (suffix == 0 || size == 0) refuse(size);
    return ByteRange{std::max<std::int64_t>(0, size - suffix), size - 1};
  }
  const ByteRange result{number(first, size),
                         last.empty() ? size - 1 : std::min(number(last, size), size - 1)};
  if (result.first >= size || (!last.empty() && number(last, size) < result.first)) refuse(size);
  return result;
}

}  // namespace magi
