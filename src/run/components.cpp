// SPDX-License-Identifier: Apache-2.0
#include "run/components.h"

#include <nlohmann/json.hpp>

#include "io/native_manifest.h"

namespace magi {
namespace {

namespace fs = std::filesystem;

ConfigNode read_config(const fs::path& root, const std::optional<fs::path>& given) {
  require(fs::is_directory(root),
          "{}: no such directory; -m takes the root of a checkpoint (\"magi2 init DIR\" makes a tiny one)",
          root.string());
  require(!fs::exists(root / kUnfinishedManifestName),
          "{}: this root is not finished; \"magi2 quantize\" with the same arguments goes on with it",
          root.string());
  read_manifest(root);  // a native root of another version is an error now, not when a part is loaded
  const fs::path own = root / root_paths::kConfig;
  if (!given && !fs::exists(own)) return {nlohmann::json::object(), "defaults"};
  const fs::path file = given.value_or(own);
  return {load_config(file, root), file.string()};
}

}  // namespace

CheckpointRoot::CheckpointRoot(fs::path root, const std::optional<fs::path>& config)
    : root_(std::move(root)),
      config_(read_config(root_, config)),
      defaults_(GenerationDefaults::from(config_)) {}

CheckpointRoot::CheckpointRoot()
    : config_(nlohmann::json::object(), "the release's configuration"),
      defaults_(GenerationDefaults::from(config_)) {}

CheckpointRoot CheckpointRoot::release() {
  return {};
}

fs::path CheckpointRoot::configured(const ConfigNode& section, const char* key, const char* otherwise) const {
  const fs::path path = section.text(key, std::string());
  if (path.empty()) return root_ / otherwise;
  return path.is_absolute() || fs::exists(path) ? path : root_ / path;
}

fs::path CheckpointRoot::preview() const {
  return configured(config_.node("engine_config"), "load", root_paths::kPreview);
}

fs::path CheckpointRoot::refiner() const {
  return configured(config_.node("evaluation_config"), "magi2_refiner_model_path", root_paths::kRefiner);
}

fs::path CheckpointRoot::text_encoder() const {
  return configured(config_.node("evaluation_config"), "txt_model_path", root_paths::kTextEncoder);
}

fs::path CheckpointRoot::wan_vae() const {
  return configured(config_.node("evaluation_config"), "vae_model_path", root_paths::kVae) /
         root_paths::kWanVae;
}

fs::path CheckpointRoot::turbo_decoder_config() const {
  return configured(config_.node("evaluation_config"), "student_config", root_paths::kTurboConfig);
}

fs::path CheckpointRoot::turbo_decoder_weights() const {
  return configured(config_.node("evaluation_config"), "student_ckpt", root_paths::kTurboWeights);
}

fs::path CheckpointRoot::audio_decoder() const {
  return configured(config_.node("evaluation_config"), "audio_model_path", root_paths::kAudio);
}

}  // namespace magi
