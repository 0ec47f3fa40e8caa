// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

namespace magi {

inline constexpr std::size_t kMaxJsonBytes = 64u << 20;
inline constexpr std::size_t kMaxJsonValues = std::size_t{8} << 20;

/// Parses `text`: UTF-8, nesting at most 64 deep, at most `max_values` values, and no name twice in an object
/// (which one counts would depend on the reader); errors name `where` and the position. `lines` receives the
/// line, from 1, on which each element of a top-level list begins.
nlohmann::json parse_json(std::string_view text, const std::string& where,
                          std::vector<std::size_t>* lines = nullptr, std::size_t max_values = kMaxJsonValues);

/// Reads and parses a JSON file of at most kMaxJsonBytes.
nlohmann::json read_json(const std::filesystem::path& file, std::vector<std::size_t>* lines = nullptr);

}  // namespace magi
