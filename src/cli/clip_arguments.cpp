// SPDX-License-Identifier: Apache-2.0
#include "cli/clip_arguments.h"

#include <CLI/CLI.hpp>
#include <nlohmann/json.hpp>

#include "core/error.h"
#include "io/json_file.h"

namespace magi {
namespace {

/// {"<Figure k>": "path", …}; else paths.
nlohmann::json images_of(const std::vector<std::string>& paths) try {
  const bool named = paths.size() == 1 && paths[0].starts_with('{');
  return named ? parse_json(paths[0], "--image") : nlohmann::json(paths);
} catch (const Error& e) {
  throw CLI::ValidationError(e.what());
}

}  // namespace

template <typename T>
CLI::Option* add_field(CLI::App& c, nlohmann::json& request, const std::string& flag, const std::string& key,
                       const std::string& help) {
  return c
      .add_option_function<T>(
          flag, [&request, key](const T& value) { request[key] = value; }, help)
      ->take_last();
}
template CLI::Option* add_field<std::string>(CLI::App&, nlohmann::json&, const std::string&,
                                             const std::string&, const std::string&);
template CLI::Option* add_field<std::int64_t>(CLI::App&, nlohmann::json&, const std::string&,
                                              const std::string&, const std::string&);
template CLI::Option* add_field<double>(CLI::App&, nlohmann::json&, const std::string&, const std::string&,
                                        const std::string&);

CLI::Option* add_clip_options(CLI::App& c, std::string& root, nlohmann::json& request) {
  c.add_option("-m,--model", root, "Checkpoint root")->envname("MAGI2_CKPT_ROOT")->type_name("DIR");
  c.option_defaults()->group("Clip");
  CLI::Option* prompt =
      add_field<std::string>(c, request, "-p,--prompt", "prompt", "What to show and to let hear");
  c.add_option_function<std::vector<std::string>>(
       "-i,--image",
       [&request](const std::vector<std::string>& paths) { request["image"] = images_of(paths); },
       "Reference image, may be repeated: <Figure 1> in the prompt is the first frame, <Figure 2> …; or "
       "{\"<Figure k>\": \"path\", …}")
      ->type_name("FILE");
  add_field<std::string>(c, request, "--preset", "preset",
                         "Size: 272p (448x256), 540p (896x512) or 1080p (540p refined to 1920x1088)");
  add_field<std::int64_t>(c, request, "-W,--width", "width",
                          "Pixels, a multiple of 16 (default: the root's; the release: 896)");
  add_field<std::int64_t>(c, request, "-H,--height", "height",
                          "Pixels, a multiple of 16 (default: the root's; the release: 512)");
  add_field<double>(c, request, "--seconds", "seconds",
                    "Length, 0.02 to 60 (default: the root's; the release: 10, what it was trained for)");
  add_field<std::int64_t>(c, request, "--steps", "steps",
                          "Denoising steps, 1 to 1000 (default: the root's; the release: 100)");
  add_field<std::string>(c, request, "--refine", "refine",
                         "Refine to this size, multiples of 16, at twice the frame rate")
      ->type_name("WxH");
  add_field<std::int64_t>(c, request, "--refiner-steps", "refiner_steps",
                          "Denoising steps of the refiner (default: the root's; the release: 5)");
  add_field<std::string>(c, request, "--vae", "vae", "Video decoder: turbo (default) or wan");
  add_field<std::string>(c, request, "--dtype", "dtype", "Arithmetic: bf16 (default) or f32");
  return prompt;
}

}  // namespace magi
