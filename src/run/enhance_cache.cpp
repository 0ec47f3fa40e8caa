// SPDX-License-Identifier: Apache-2.0
#include "run/enhance_cache.h"

#include <exception>
#include <utility>

#include "core/log.h"
#include "io/atomic_file.h"
#include "io/read_file.h"

namespace magi {
namespace {

constexpr std::size_t kMaxFile = 1 << 24;

}  // namespace

EnhanceCache::EnhanceCache(std::optional<std::filesystem::path> directory)
    : directory_(std::move(directory)) {}

std::filesystem::path EnhanceCache::file(const std::string& key) const {
  return *directory_ / ("caption-" + key + ".json");
}

std::optional<PromptJson> EnhanceCache::find(const std::string& key) const {
  if (!directory_) return std::nullopt;
  try {
    return parse_prompt_json(read_file(file(key), kMaxFile));
  } catch (const std::exception&) {
    return std::nullopt;
  }
}

void EnhanceCache::keep(const std::string& key, const PromptJson& caption) const {
  if (!directory_) return;
  try {
    std::filesystem::create_directories(*directory_);
    const std::string text = caption.dump(2) + "\n";
    AtomicFile out(file(key));
    out.write(text.data(), text.size());
    out.commit();
  } catch (const std::exception& error) {
    log_warning("the enhanced prompt is not kept: {}", error.what());
  }
}

}  // namespace magi
