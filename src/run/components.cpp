// SPDX-License-Identifier: Apache-2.0
#include "run/components.h"

#include <nlohmann/json.hpp>

namespace magi {
namespace {

namespace fs = std::filesystem;

ConfigNode read_config(const fs::path& root, const std::optional<fs::path>& given) {
  require(fs::is_directory(root),
          "{}: no such directory; -m takes the root of a checkpoint (\"magi2 init DIR\" makes a tiny one)",
          root.string());
  const fs::path own = root / "config.json";
  if (!given && !fs::exists(own)) return {nlohmann::json::object(), "defaults"};
  const fs::path file = given.value_or(own);
  return {load_config(file, root), file.string()};
}

}  // namespace

CheckpointRoot::CheckpointRoot(fs::path root, const std::optional<fs::path>& config)
    : root_(std::move(root)),
      config_(read_config(root_, config)),
      defaults_(GenerationDefaults::from(config_)) {}

fs::path CheckpointRoot::configured(const ConfigNode& section, const char* key, const char* otherwise) const {
  const fs::path path = section.text(key, (root_ / otherwise).string());
  return path.is_absolute() || fs::exists(path) ? path : root_ / path;
}

fs::path CheckpointRoot::preview() const {
  return configured(config_.node("engine_config"), "load", "preview");
}

fs::path CheckpointRoot::refiner() const {
  return configured(config_.node("evaluation_config"), "magi2_refiner_model_path", "refiner");
}

fs::path CheckpointRoot::text_encoder() const {
  return configured(config_.node("evaluation_config"), "txt_model_path", "text_encoder");
}

fs::path CheckpointRoot::wan_vae() const {
  return configured(config_.node("evaluation_config"), "vae_model_path", "vae") / "Wan2.2_VAE.pth";
}

fs::path CheckpointRoot::turbo_decoder_config() const {
  return configured(config_.node("evaluation_config"), "student_config",
                    "turbo_vae/TurboV3-Wan22-TinyShallow_7_7.json");
}

fs::path CheckpointRoot::turbo_decoder_weights() const {
  return configured(config_.node("evaluation_config"), "student_ckpt", "turbo_vae/checkpoint.ckpt");
}

fs::path CheckpointRoot::audio_decoder() const {
  return configured(config_.node("evaluation_config"), "audio_model_path", "stable-audio-open-1.0");
}

}  // namespace magi
