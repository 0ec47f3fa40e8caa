// SPDX-License-Identifier: Apache-2.0
#include "serve/json_log.h"

#include <chrono>
#include <cstdio>
#include <ctime>
#include <nlohmann/json.hpp>

#include "core/log.h"
#include "serve/job_view.h"

namespace magi {

void json_log(const char* event, const nlohmann::json& fields) {
  const auto now = std::chrono::system_clock::now().time_since_epoch();
  const auto ms = std::chrono::duration_cast<std::chrono::milliseconds>(now).count();
  const std::time_t seconds = ms / 1000;
  std::tm utc{};
  gmtime_r(&seconds, &utc);
  char time[24];
  std::strftime(time, sizeof time, "%Y-%m-%dT%H:%M:%S", &utc);
  std::string line = fmt::format(R"({{"ts":"{}.{:03}Z","event":"{}")", time, ms % 1000, event);
  const std::string rest = dump(fields);
  line += fields.empty() ? "}" : "," + rest.substr(1);
  line += '\n';
  std::fwrite(line.data(), 1, line.size(), stderr);  // one call: lines of threads do not mix
}

JsonLogSink::JsonLogSink() {
  set_log_sink([](LogLevel level, std::string_view line) {
    json_log("log", {{"level", level == LogLevel::warning ? "warning" : "info"}, {"message", line}});
  });
}

JsonLogSink::~JsonLogSink() {
  set_log_sink({});
}

}  // namespace magi
