// SPDX-License-Identifier: Apache-2.0
// One Request, parsed and validated in one place, for the command line and batch files alike.
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <vector>

#include "core/dtype.h"
#include "sample/guidance.h"

namespace magi {

class ConfigNode;

/// A checkpoint root's own defaults: its config's `generation` section and guidance scales, else the
/// release's.
struct GenerationDefaults {
  std::int64_t width = 896, height = 512;
  double seconds = 10;
  std::int64_t steps = 100;
  double shift = 7;
  std::int64_t refiner_steps = 5;
  double refiner_shift = 5;
  std::int64_t refiner_noise = 220;
  double fps = 12.5;
  GuidanceOptions guidance, refiner_guidance;

  static GenerationDefaults from(const ConfigNode& root);
};

struct Size {
  std::int64_t width = 0, height = 0;
  bool operator==(const Size&) const = default;
};

/// A reference image, called <Figure k> in the prompt.
struct ImageInput {
  int figure = 1;
  std::string path;
};

constexpr std::uint64_t kDefaultSeed = 42;

/// What to make. Field names below are the JSON keys; sizes are in pixels.
struct Request {
  std::string prompt;
  std::optional<std::string> original_prompt;  ///< what a person wrote, where `prompt` was made from it
  std::optional<std::string> negative_prompt;  ///< absent: the official one
  std::vector<ImageInput> images;              ///< `image`: a path, a list, or an object naming "<Figure k>"
  /// One for each image where given: other pictures are refused. From a clip's metadata, which has no paths.
  std::vector<std::string> image_sha256;
  std::int64_t width = 0, height = 0;  ///< of the preview, multiples of 16
  double seconds = 0;
  std::int64_t steps = 0;
  std::uint64_t seed = kDefaultSeed;
  bool audio = true;
  DType dtype = DType::bf16;   ///< `dtype`, "f32" or "bf16": text encoder, DiTs and turbo decoder
  bool wan_decoder = false;    ///< `vae`: "turbo" or "wan"
  GuidanceOptions guidance;    ///< `cfg_video`, `cfg_audio` and the config's options
  std::optional<Size> refine;  ///< `refine`: "WxH", multiples of 16
  std::int64_t refiner_steps = 0;
  std::optional<Size> output_size;  ///< `output_width`, `output_height`: finished frames are resized

  /// Reads a JSON object. Unknown keys, wrong types and impossible values throw Error naming `where` and the
  /// key.
  static Request from_json(const nlohmann::json& object, const GenerationDefaults& defaults,
                           const std::string& where);
  /// What determines the pixels, for the file's metadata: no paths, threads or weight formats. With `image`
  /// added where there are pictures, it is a request for the same clip.
  nlohmann::json to_metadata() const;

  std::int64_t latent_frames() const;  ///< T = (round(25·s) − 1)/8 + 1
  std::int64_t audio_latents() const;  ///< A = round(25·s)
};

}  // namespace magi
