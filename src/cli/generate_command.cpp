// SPDX-License-Identifier: Apache-2.0
#include <omp.h>

#include <CLI/CLI.hpp>
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <memory>
#include <nlohmann/json.hpp>

#include "cli/commands.h"
#include "cli/progress_bar.h"
#include "core/log.h"
#include "io/atomic_file.h"
#include "run/generate.h"

namespace magi {
namespace {

struct GenerateArguments {
  std::string root;
  std::string config;
  std::string output = "clip.mp4";
  std::string prompt_file;
  std::string dtype = "bf16";
  std::string stats;
  std::string latents;
  int threads = 0;
  bool no_audio = false;
  nlohmann::json request = nlohmann::json::object();  ///< only what was given
};

/// An option whose value goes into the request as it is; the request checks it.
template <typename T>
CLI::Option* add_field(CLI::App& command, GenerateArguments& a, const std::string& flag,
                       const std::string& key, const std::string& help) {
  return command.add_option_function<T>(
      flag, [&a, key](const T& value) { a.request[key] = value; }, help);
}

std::string read_prompt_file(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  require(in.good(), "{}: cannot read the prompt", path);
  std::string text((std::istreambuf_iterator<char>(in)), {});
  while (!text.empty() && (text.back() == '\n' || text.back() == '\r')) text.pop_back();
  return text;
}

void run_generate(GenerateArguments& a) {
  require(!a.root.empty(),
          "no checkpoint root: give -m ROOT or set MAGI2_CKPT_ROOT (\"magi2 init DIR\" makes a tiny one)");
  if (a.threads > 0) omp_set_num_threads(a.threads);
  if (!a.prompt_file.empty()) a.request["prompt"] = read_prompt_file(a.prompt_file);
  if (a.no_audio) a.request["audio"] = false;

  const CheckpointRoot root(a.root,
                            a.config.empty() ? std::nullopt : std::optional<std::filesystem::path>(a.config));
  const Request request = Request::from_json(a.request, root.defaults(), "request");
  GenerateOptions options;
  options.dtype = a.dtype == "f32" ? DType::f32 : DType::bf16;
  options.output = a.output;
  if (!a.latents.empty()) options.latents_directory = a.latents;

  ProgressBar progress;
  const InterruptGuard guard(progress);
  const Report report = generate(root, request, options, progress);
  progress.finish();
  if (!a.stats.empty()) {
    const std::string text = report.to_json().dump(2) + "\n";
    AtomicFile file(a.stats);
    file.write(text.data(), text.size());
    file.commit();
  }
  log_info("{}", a.output);
}

}  // namespace

void add_generate_command(CLI::App& app, Work& work) {
  CLI::App& c = *app.add_subcommand("generate", "Make a clip from a prompt");
  auto a = std::make_shared<GenerateArguments>();
  c.add_option("-m,--model", a->root, "Checkpoint root")->envname("MAGI2_CKPT_ROOT");
  auto* prompt = add_field<std::string>(c, *a, "-p,--prompt", "prompt", "What to show and to let hear");
  c.add_option("--prompt-file", a->prompt_file, "Read the prompt from a file")->excludes(prompt);
  c.add_option("-o,--output", a->output, "The MP4 to write")->capture_default_str();
  c.add_option_function<std::vector<std::string>>(
      "-i,--image",
      [a = a.get()](const std::vector<std::string>& paths) {
        const bool named = paths.size() == 1 && !paths[0].empty() && paths[0][0] == '{';
        a->request["image"] = named ? nlohmann::json::parse(paths[0], nullptr, false) : nlohmann::json(paths);
      },
      "Reference image, may be repeated; or {\"<Figure k>\": \"path\", …}");
  add_field<std::string>(c, *a, "--preset", "preset", "272p, 540p or 1080p");
  add_field<std::int64_t>(c, *a, "-W,--width", "width", "Pixels, a multiple of 16");
  add_field<std::int64_t>(c, *a, "-H,--height", "height", "Pixels, a multiple of 16");
  add_field<double>(c, *a, "--seconds", "seconds", "Length of the clip");
  add_field<std::int64_t>(c, *a, "--steps", "steps", "Denoising steps");
  add_field<std::int64_t>(c, *a, "--seed", "seed", "Same seed, same clip (default 42)");
  add_field<double>(c, *a, "--cfg-video", "cfg_video", "Guidance scale of the video");
  add_field<double>(c, *a, "--cfg-audio", "cfg_audio", "Guidance scale of the audio");
  add_field<std::string>(c, *a, "--negative-prompt", "negative_prompt",
                         "What not to show (default: the official one)");
  add_field<std::string>(c, *a, "--refine", "refine", "Refine to WIDTHxHEIGHT, multiples of 16");
  add_field<std::int64_t>(c, *a, "--refiner-steps", "refiner_steps", "Denoising steps of the refiner");
  add_field<std::int64_t>(c, *a, "--output-width", "output_width", "Resize the finished frames");
  add_field<std::int64_t>(c, *a, "--output-height", "output_height", "Resize the finished frames");
  add_field<std::string>(c, *a, "--vae", "vae", "Video decoder: turbo (default) or wan");
  c.add_option("--config", a->config,
               "Configuration of the official schema (default: the root's, else the release's)");
  c.add_option("--dtype", a->dtype, "Arithmetic")
      ->check(CLI::IsMember({"f32", "bf16"}))
      ->capture_default_str();
  c.add_option("--threads", a->threads, "CPU threads (default: all)")->check(CLI::PositiveNumber);
  c.add_flag("--no-audio", a->no_audio, "No sound track");
  c.add_option("--save-latents", a->latents, "Directory for the latents, as safetensors");
  c.add_option("--stats", a->stats, "Write times, memory, steps and hashes as JSON");
  c.callback([a, &work] { work = [a] { run_generate(*a); }; });
}

}  // namespace magi
