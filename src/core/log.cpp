// SPDX-License-Identifier: Apache-2.0
#include "core/log.h"

#include <cstdio>
#include <mutex>

namespace magi {
namespace {

LogSink& sink() {
  static LogSink current = [](LogLevel level, std::string_view line) {
    fmt::print(stderr, "{}{}\n", level == LogLevel::warning ? "warning: " : "", line);
  };
  return current;
}

}  // namespace

void set_log_sink(LogSink replacement) {
  sink() = std::move(replacement);
}

void log_line(LogLevel level, std::string_view line) {
  static std::mutex mutex;
  const std::lock_guard lock(mutex);
  sink()(level, line);
}

}  // namespace magi
