// SPDX-License-Identifier: Apache-2.0
// Lines for the person who started the program, on standard error.
#pragma once

#include <fmt/format.h>

#include <functional>
#include <string_view>

namespace magi {

enum class LogLevel { info, warning };

/// Receives every line; by default they go to standard error, warnings with the word in front.
using LogSink = std::function<void(LogLevel, std::string_view)>;
/// Replaces the sink (a progress bar must be cleared before a line is written); an empty one restores the
/// default. Not thread-safe: while no other thread writes lines.
void set_log_sink(LogSink sink);
void log_line(LogLevel level, std::string_view line);

template <typename... Args>
void log_info(fmt::format_string<Args...> format, Args&&... args) {
  log_line(LogLevel::info, fmt::format(format, std::forward<Args>(args)...));
}
template <typename... Args>
void log_warning(fmt::format_string<Args...> format, Args&&... args) {
  log_line(LogLevel::warning, fmt::format(format, std::forward<Args>(args)...));
}

}  // namespace magi
