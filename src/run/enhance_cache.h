// SPDX-License-Identifier: Apache-2.0
// Answers of the language model on disk, so that the same request gives the same caption, and so the same
// clip. Internal to prompt enhancement.
#pragma once

#include <filesystem>
#include <optional>
#include <string>

#include "text/json_text.h"

namespace magi {

class EnhanceCache {
 public:
  /// Without a directory nothing is ever found or kept.
  explicit EnhanceCache(std::optional<std::filesystem::path> directory);

  /// The kept caption of `key` (a SHA-256), unchecked. A file that does not hold one is as good as none.
  std::optional<PromptJson> find(const std::string& key) const;
  /// A directory that cannot be written costs a warning, not the caption.
  void keep(const std::string& key, const PromptJson& caption) const;

 private:
  std::filesystem::path file(const std::string& key) const;

  std::optional<std::filesystem::path> directory_;
};

}  // namespace magi
