// SPDX-License-Identifier: Apache-2.0
#include "serve/router.h"

#include <optional>

#include "serve/api_error.h"

namespace magi {
namespace {

/// The argument where the path fits the pattern.
std::optional<std::string> argument_of(const std::string& pattern, const std::string& path) {
  const std::size_t open = pattern.find('{');
  if (open == std::string::npos) return path == pattern ? std::optional<std::string>("") : std::nullopt;
  const std::string before = pattern.substr(0, open), after = pattern.substr(pattern.find('}') + 1);
  if (path.size() <= before.size() + after.size() || !path.starts_with(before) || !path.ends_with(after))
    return std::nullopt;
  std::string argument = path.substr(before.size(), path.size() - before.size() - after.size());
  return argument.find('/') == std::string::npos ? std::optional(std::move(argument)) : std::nullopt;
}

}  // namespace

Match Router::match(const std::string& method, const std::string& path) const {
  bool elsewhere = false;
  for (const Route& route : routes_) {
    const auto argument = argument_of(route.pattern, path);
    if (argument && route.method == method) return {&route, *argument};
    elsewhere = elsewhere || argument;
  }
  if (elsewhere) throw ApiError(405, "method_not_allowed", "this path does not take that method");
  throw ApiError(404, "not_found", "there is nothing at this path");
}

std::string Router::pattern_of(const std::string& method, const std::string& path) const {
  for (const Route& route : routes_)
    if (route.method == method && argument_of(route.pattern, path)) return route.pattern;
  return "-";
}

}  // namespace magi
