// SPDX-License-Identifier: Apache-2.0
// One JSON object a line on standard error: for machines that collect logs. No prompts, keys or cookies.
#pragma once

#include <nlohmann/json_fwd.hpp>

namespace magi {

/// Writes `fields` with the time ("ts") and `event` in front.
void json_log(const char* event, const nlohmann::json& fields);

/// While this lives, lines of core/log.h become such objects too.
class JsonLogSink {
 public:
  JsonLogSink();
  ~JsonLogSink();
  JsonLogSink(const JsonLogSink&) = delete;
  JsonLogSink& operator=(const JsonLogSink&) = delete;
};

}  // namespace magi
