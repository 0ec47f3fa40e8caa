// SPDX-License-Identifier: Apache-2.0
// Model configurations: JSON files, and typed reading of them with errors that name file and place.
#pragma once

#include <cstdint>
#include <filesystem>
#include <limits>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "io/json_file.h"

namespace magi {

/// Reads a configuration of the official schema. `"extends": "other.json"` (relative to the file) names a
/// base that is merged key by key, objects deeply, the extending file winning; `${MAGI2_CKPT_ROOT}` inside
/// any string becomes `checkpoint_root`. Throws Error on unreadable or invalid JSON, and when files extend
/// each other in a circle.
nlohmann::json load_config(const std::filesystem::path& file, const std::filesystem::path& checkpoint_root);

/// One JSON object of a configuration. Each reader takes the value for a key that is absent or null; without
/// one (std::nullopt) the key must be there. Unknown keys are ignored. A value of a wrong type or out of
/// bounds throws Error: `config.json: arch_config.moe_config.top_k: expected an integer from 1 to 64, found
/// "six"`.
class ConfigNode {
 public:
  static constexpr std::int64_t kAnyInt = std::numeric_limits<std::int64_t>::max();
  static constexpr double kAny = std::numeric_limits<double>::max();
  static constexpr std::size_t kLongestText = 4095;

  /// `file` stands in messages for where the JSON came from.
  ConfigNode(nlohmann::json object, std::string file);
  /// read_json() of `file`, as it is (no `extends`).
  static ConfigNode read(const std::filesystem::path& file);

  bool has(std::string_view key) const { return find(key) != nullptr; }
  std::int64_t integer(std::string_view key, std::optional<std::int64_t> otherwise,
                       std::int64_t min = -kAnyInt, std::int64_t max = kAnyInt) const;
  double number(std::string_view key, std::optional<double> otherwise, double min = -kAny,
                double max = kAny) const;
  bool boolean(std::string_view key, std::optional<bool> otherwise) const;
  /// Names and paths are short, prompts need not be.
  std::string text(std::string_view key, std::optional<std::string> otherwise,
                   std::size_t max_bytes = kLongestText) const;

  /// Bounds apply to each element, kLongestText to texts; lists hold at most 65536 of them.
  std::vector<std::int64_t> integers(std::string_view key, std::optional<std::vector<std::int64_t>> otherwise,
                                     std::int64_t min = -kAnyInt, std::int64_t max = kAnyInt) const;
  std::vector<bool> booleans(std::string_view key, std::optional<std::vector<bool>> otherwise) const;
  std::vector<std::string> texts(std::string_view key,
                                 std::optional<std::vector<std::string>> otherwise) const;

  /// A nested object; absent or null: an empty one.
  ConfigNode node(std::string_view key) const;

  const nlohmann::json& json() const { return *value_; }
  /// "config.json: arch_config.moe_config.top_k", for messages about relations between values.
  std::string where(std::string_view key) const;

 private:
  ConfigNode(std::shared_ptr<const nlohmann::json> value, std::string file, std::string path)
      : value_(std::move(value)), file_(std::move(file)), path_(std::move(path)) {}
  const nlohmann::json* find(std::string_view key) const;
  template <typename T, typename Read>
  T one(std::string_view key, const std::optional<T>& otherwise, Read read) const;
  template <typename T, typename Read>
  std::vector<T> list(std::string_view key, const std::optional<std::vector<T>>& otherwise, Read read) const;

  std::shared_ptr<const nlohmann::json> value_;  ///< shares ownership of the whole document
  std::string file_;
  std::string path_;
};

}  // namespace magi
