// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

namespace magi {

/// Parses `text` (UTF-8, nesting at most 64 deep); errors name `where` and the position.
nlohmann::json parse_json(std::string_view text, const std::string& where);

/// Reads and parses a JSON file of at most 256 MB.
nlohmann::json read_json(const std::filesystem::path& file);

}  // namespace magi
