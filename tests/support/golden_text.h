// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <nlohmann/json.hpp>
#include <regex>
#include <string>

namespace magi {

/// A text from a golden case's metadata, where characters outside ASCII are written as \uXXXX or \xXX.
inline std::string unescaped(const std::string& text) {
  if (text.find("\\u") == std::string::npos && text.find("\\x") == std::string::npos) return text;
  const std::string json = std::regex_replace(text, std::regex(R"(\\x([0-9a-f]{2}))"), "\\u00$1");
  return nlohmann::json::parse('"' + json + '"').get<std::string>();
}

}  // namespace magi
