// SPDX-License-Identifier: Apache-2.0
#include "core/log.h"

#include <cstdio>
#include <mutex>

#include "core/standard_error.h"

namespace magi {
namespace {

void to_standard_error(LogLevel level, std::string_view line) {
  print_error("{}{}\n", level == LogLevel::warning ? "warning: " : "", line);
}

LogSink& sink() {
  static LogSink current = to_standard_error;
  return current;
}

}  // namespace

void set_log_sink(LogSink replacement) {
  sink() = replacement ? std::move(replacement) : to_standard_error;
}

void log_line(LogLevel level, std::string_view line) {
  static std::mutex mutex;
  const std::lock_guard lock(mutex);
  sink()(level, line);
}

}  // namespace magi
