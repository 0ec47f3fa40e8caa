// SPDX-License-Identifier: Apache-2.0
// Where the parts of a checkpoint root lie, and loading each of them.
#pragma once

#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "io/config.h"
#include "run/request.h"

namespace magi {

/// Where the parts lie in a root whose configuration does not say otherwise.
namespace root_paths {
inline constexpr const char* kConfig = "config.json";
inline constexpr const char* kPreview = "preview";
inline constexpr const char* kRefiner = "refiner";
inline constexpr const char* kTextEncoder = "text_encoder";
inline constexpr const char* kVae = "vae";
inline constexpr const char* kWanVae = "Wan2.2_VAE.pth";  ///< in kVae
inline constexpr const char* kTurboConfig = "turbo_vae/TurboV3-Wan22-TinyShallow_7_7.json";
inline constexpr const char* kTurboWeights = "turbo_vae/checkpoint.ckpt";
inline constexpr const char* kAudio = "stable-audio-open-1.0";
}  // namespace root_paths

/// A checkpoint root with its configuration: the root's own config.json, a given file, or the release's
/// defaults.
class CheckpointRoot {
 public:
  /// Throws Error when the directory or the config cannot be read. The parts are only looked at when asked
  /// for.
  CheckpointRoot(std::filesystem::path root, const std::optional<std::filesystem::path>& config);
  /// The release's sizes without any files, for plans.
  static CheckpointRoot release();
  bool has_files() const { return !root_.empty(); }

  const std::filesystem::path& path() const { return root_; }
  const ConfigNode& config() const { return config_; }
  const GenerationDefaults& defaults() const { return defaults_; }

  std::filesystem::path preview() const;
  std::filesystem::path refiner() const;
  std::filesystem::path text_encoder() const;
  std::filesystem::path wan_vae() const;  ///< Wan2.2_VAE.pth
  std::filesystem::path turbo_decoder_config() const;
  std::filesystem::path turbo_decoder_weights() const;
  std::filesystem::path audio_decoder() const;  ///< directory with model_config.json

 private:
  CheckpointRoot();
  std::filesystem::path configured(const ConfigNode& section, const char* key, const char* otherwise) const;

  std::filesystem::path root_;
  ConfigNode config_;
  GenerationDefaults defaults_;
};

}  // namespace magi
