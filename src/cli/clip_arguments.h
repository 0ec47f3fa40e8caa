// SPDX-License-Identifier: Apache-2.0
// The options that say which clip is meant, which `generate` and `plan` share.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>

namespace CLI {
class App;
class Option;
}  // namespace CLI

namespace magi {

/// An option whose value goes into the request as it is; the request checks it. Given twice, the last one
/// counts. T: std::string, std::int64_t or double.
template <typename T>
CLI::Option* add_field(CLI::App& command, nlohmann::json& request, const std::string& flag,
                       const std::string& key, const std::string& help);

/// -m, and what of a clip decides how much it takes; gives the prompt's option.
CLI::Option* add_clip_options(CLI::App& command, std::string& root, nlohmann::json& request);

}  // namespace magi
