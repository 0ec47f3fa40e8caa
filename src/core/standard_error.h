// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <fmt/format.h>

#include <cstdio>
#include <utility>

namespace magi {

/// Formats to standard error. That it is closed or its disk full is no failure of the work that tells of
/// itself (fmt::print() would throw).
template <typename... Args>
void print_error(fmt::format_string<Args...> format, Args&&... args) {
  std::fputs(fmt::format(format, std::forward<Args>(args)...).c_str(), stderr);
}

}  // namespace magi
