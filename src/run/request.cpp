// SPDX-License-Identifier: Apache-2.0
#include "run/request.h"

#include <array>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <nlohmann/json.hpp>
#include <set>
#include <string_view>

#include "io/config.h"
#include "io/tensor_store.h"
#include "text/unicode.h"

namespace magi {
namespace {

constexpr std::int64_t kMaxSide = 8192;
constexpr double kMaxSeconds = 60;
constexpr std::int64_t kMaxSteps = 1000;
constexpr std::size_t kMaxPromptBytes = 1 << 20;
constexpr std::size_t kMaxImages = 16;

struct Preset {
  std::string_view name;
  Size preview;
  std::optional<Size> refined;
};
const std::array<Preset, 3> kPresets{
    {{"272p", {448, 256}, {}}, {"540p", {896, 512}, {}}, {"1080p", {896, 512}, Size{1920, 1088}}}};

const std::set<std::string> kKeys{"prompt", "original_prompt", "negative_prompt", "image",   "image_sha256",
                                  "preset", "width",           "height",          "seconds", "steps",
                                  "seed",   "cfg_video",       "cfg_audio",       "audio",   "dtype",
                                  "refine", "refiner_steps",   "output_width",    "vae",     "output_height",
                                  "engine"};

void check_side(const ConfigNode& in, const char* key, std::int64_t value) {
  require(value % 16 == 0, "{}: {} is not a multiple of 16; the nearest are {} and {}", in.where(key), value,
          value / 16 * 16, value / 16 * 16 + 16);
}

Size parse_size(const std::string& text, const std::string& where) {
  long long width = 0, height = 0;
  int used = 0;
  const bool read = std::sscanf(text.c_str(), "%lldx%lld%n", &width, &height, &used) == 2;
  require(read && static_cast<std::size_t>(used) == text.size() && width > 0 && height > 0 &&
              width <= kMaxSide && height <= kMaxSide,
          "{}: expected WIDTHxHEIGHT up to {}x{}, found \"{}\"", where, kMaxSide, kMaxSide, text);
  require(width % 16 == 0 && height % 16 == 0, "{}: both sides must be multiples of 16, found {}", where,
          text);
  return {width, height};
}

void apply_preset(const std::string& name, const ConfigNode& in, Request& request) {
  for (const Preset& preset : kPresets) {
    if (preset.name != name) continue;
    request.width = preset.preview.width;
    request.height = preset.preview.height;
    request.refine = preset.refined;
    return;
  }
  fail("{}: there is no preset \"{}\"; choose 272p, 540p or 1080p", in.where("preset"), name);
}

/// 17 of "<Figure 17>"; 1 where there is no number, as the released pipeline has it.
int figure_number(const std::string& key) {
  const std::size_t digit = key.find_first_of("0123456789");
  return digit == std::string::npos ? 1 : std::atoi(key.substr(digit, 4).c_str());
}

std::vector<ImageInput> image_list(const ConfigNode& in) {
  std::vector<ImageInput> images;
  if (!in.has("image")) return images;
  const nlohmann::json& value = in.json().at("image");
  if (value.is_object()) {
    const ConfigNode named = in.node("image");
    for (const auto& item : value.items())  // keys in lexicographic order
      images.push_back({figure_number(item.key()), named.text(item.key(), std::nullopt)});
  } else if (value.is_array()) {
    for (std::string& path : in.texts("image", std::nullopt))
      images.push_back({static_cast<int>(images.size()) + 1, std::move(path)});
  } else {
    images.push_back({1, in.text("image", std::nullopt)});
  }
  require(images.size() <= kMaxImages, "{}: {} images, at most {} are taken", in.where("image"),
          images.size(), kMaxImages);
  for (const ImageInput& image : images)
    require(!image.path.empty(), "{}: an image path is empty", in.where("image"));
  return images;
}

/// "f32" or "bf16", or the like.
std::string one_of(const ConfigNode& in, const char* key, const char* first, const char* second,
                   const char* otherwise) {
  std::string value = in.text(key, otherwise);
  require(value == first || value == second, "{}: \"{}\" is neither {} nor {}", in.where(key), value, first,
          second);
  return value;
}

}  // namespace

GenerationDefaults GenerationDefaults::from(const ConfigNode& root) {
  GenerationDefaults d;
  const ConfigNode own = root.node("generation");
  d.width = own.integer("width", d.width, 16, kMaxSide);
  d.height = own.integer("height", d.height, 16, kMaxSide);
  check_side(own, "width", d.width);
  check_side(own, "height", d.height);
  d.seconds = own.number("seconds", d.seconds, 0.02, kMaxSeconds);
  const ConfigNode e = root.node("evaluation_config");
  d.steps = own.integer("steps", e.integer("num_inference_steps", d.steps, 1, kMaxSteps), 1, kMaxSteps);
  d.shift = e.number("shift", d.shift, 1e-6, 1e6);
  d.fps = e.number("fps", d.fps, 0.1, 1000);
  d.refiner_steps = e.integer("magi2_refiner_num_inference_steps", d.refiner_steps, 1, kMaxSteps);
  d.refiner_shift = e.number("magi2_refiner_shift", d.refiner_shift, 1e-6, 1e6);
  d.refiner_noise = e.integer("magi2_refiner_noise_value", d.refiner_noise, 0, 999);
  d.guidance = preview_guidance(e);
  d.refiner_guidance = magi::refiner_guidance(e);
  return d;
}

Request Request::from_json(const nlohmann::json& object, const GenerationDefaults& defaults,
                           const std::string& where) {
  require(object.is_object(), "{}: expected an object with a prompt, found {}", where, object.type_name());
  for (const auto& item : object.items())
    require(kKeys.contains(item.key()), "{}: unknown key {}", where, printable(item.key()));
  const ConfigNode in(object, where);

  Request r;
  r.prompt = in.text("prompt", std::nullopt, kMaxPromptBytes);
  require(r.prompt.find_first_not_of(" \t\r\n") != std::string::npos, "{}: the prompt is empty",
          in.where("prompt"));
  decode_utf8(r.prompt, in.where("prompt"));
  if (in.has("original_prompt")) {
    r.original_prompt = in.text("original_prompt", {}, kMaxPromptBytes);
    decode_utf8(*r.original_prompt, in.where("original_prompt"));
  }
  if (in.has("negative_prompt")) {
    r.negative_prompt = in.text("negative_prompt", {}, kMaxPromptBytes);
    decode_utf8(*r.negative_prompt, in.where("negative_prompt"));
  }
  r.images = image_list(in);
  r.image_sha256 = in.texts("image_sha256", std::vector<std::string>());
  require(r.image_sha256.empty() || r.image_sha256.size() == r.images.size(),
          "{}: {} checksums for {} images", in.where("image_sha256"), r.image_sha256.size(), r.images.size());

  r.width = defaults.width;
  r.height = defaults.height;
  if (in.has("preset")) apply_preset(in.text("preset", {}), in, r);
  r.width = in.integer("width", r.width, 16, kMaxSide);
  r.height = in.integer("height", r.height, 16, kMaxSide);
  check_side(in, "width", r.width);
  check_side(in, "height", r.height);
  if (in.has("refine")) r.refine = parse_size(in.text("refine", {}), in.where("refine"));
  r.refiner_steps = in.integer("refiner_steps", defaults.refiner_steps, 1, kMaxSteps);
  require(in.has("output_width") == in.has("output_height"), "{}: output_width and output_height go together",
          where);
  if (in.has("output_width")) {
    r.output_size =
        Size{in.integer("output_width", {}, 2, kMaxSide), in.integer("output_height", {}, 2, kMaxSide)};
    require(r.output_size->width % 2 == 0 && r.output_size->height % 2 == 0,
            "{}: output_width and output_height must be even, found {}x{}", where, r.output_size->width,
            r.output_size->height);
  }

  r.seconds = in.number("seconds", defaults.seconds, 0.02, kMaxSeconds);
  r.steps = in.integer("steps", defaults.steps, 1, kMaxSteps);
  r.seed = static_cast<std::uint64_t>(in.integer("seed", static_cast<std::int64_t>(r.seed), 0));
  r.audio = in.boolean("audio", true);
  r.dtype = one_of(in, "dtype", "f32", "bf16", "bf16") == "f32" ? DType::f32 : DType::bf16;
  r.wan_decoder = one_of(in, "vae", "turbo", "wan", "turbo") == "wan";
  r.guidance = defaults.guidance;
  r.guidance.video_scale = static_cast<float>(in.number("cfg_video", r.guidance.video_scale, -1000, 1000));
  r.guidance.audio_scale = static_cast<float>(in.number("cfg_audio", r.guidance.audio_scale, -1000, 1000));
  return r;
}

nlohmann::json Request::to_metadata() const {
  nlohmann::json m{{"prompt", prompt},
                   {"width", width},
                   {"height", height},
                   {"seconds", seconds},
                   {"steps", steps},
                   {"seed", seed},
                   {"audio", audio},
                   {"dtype", dtype == DType::f32 ? "f32" : "bf16"},
                   {"engine", std::string("magi2 ") + MAGI2_VERSION},
                   {"cfg_video", guidance.video_scale},
                   {"cfg_audio", guidance.audio_scale}};
  if (original_prompt) m["original_prompt"] = *original_prompt;
  if (negative_prompt) m["negative_prompt"] = *negative_prompt;
  if (!image_sha256.empty()) m["image_sha256"] = image_sha256;
  if (refine) {
    m["refine"] = fmt::format("{}x{}", refine->width, refine->height);
    m["refiner_steps"] = refiner_steps;
  }
  if (wan_decoder) m["vae"] = "wan";
  if (output_size) m["output_width"] = output_size->width, m["output_height"] = output_size->height;
  return m;
}

std::int64_t Request::audio_latents() const {
  return std::max<std::int64_t>(1, std::llrint(25 * seconds));
}
std::int64_t Request::latent_frames() const {
  return (audio_latents() - 1) / 8 + 1;
}

}  // namespace magi
