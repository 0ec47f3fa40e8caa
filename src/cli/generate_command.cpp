// SPDX-License-Identifier: Apache-2.0
#include <CLI/CLI.hpp>
#include <cstdio>
#include <filesystem>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>

#include "cli/commands.h"
#include "cli/engine_arguments.h"
#include "cli/enhance_arguments.h"
#include "cli/progress_bar.h"
#include "cli/ranks.h"
#include "core/log.h"
#include "core/memory_ledger.h"
#include "io/atomic_file.h"
#include "run/batch.h"
#include "run/memory_plan.h"

namespace magi {
namespace {

struct GenerateArguments {
  std::string root;
  std::string config;
  std::string output = "clip.mp4";
  std::string prompt_file;
  std::string samples;
  std::int64_t count = 1;
  std::string stats;
  std::string latents;
  EngineArguments engine;
  std::string trace;
  bool no_audio = false;
  EnhanceArguments enhance;
  nlohmann::json request = nlohmann::json::object();  ///< only what was given
};

/// An option whose value goes into the request as it is; the request checks it. Given twice, the last one
/// counts.
template <typename T>
CLI::Option* add_field(CLI::App& command, GenerateArguments& a, const std::string& flag,
                       const std::string& key, const std::string& help) {
  return command
      .add_option_function<T>(
          flag, [&a, key](const T& value) { a.request[key] = value; }, help)
      ->take_last();
}

/// One clip's report as it is; of a batch, a list.
void write_stats(AtomicFile& file, const std::vector<Report>& reports, bool batch) {
  nlohmann::json stats = nlohmann::json::array();
  for (const Report& report : reports) stats.push_back(report.to_json());
  const std::string text =
      (batch ? stats : stats.at(0)).dump(2, ' ', false, nlohmann::json::error_handler_t::replace) + "\n";
  file.write(text.data(), text.size());
  file.commit();
}

/// What the first clip will take; nothing where it cannot be told or does not fit, which the work itself will
/// say.
void print_plan(const CheckpointRoot& root, const ClipTask& task, const EngineOptions& engine) {
  if (!task.error.empty()) return;
  try {
    const MemoryPlan plan = plan_memory(root, task.request, engine);
    if (!plan.impossible.empty()) return;
    fmt::print("{}", to_text(plan));
    std::fflush(stdout);  // before the progress, where both go into one file
  } catch (const Error&) {
  }
}

void print_peaks(const Report& report) {
  for (const StageRecord& s : report.stages)
    fmt::print("{:<8} {:>9.1f} s; at most {} resident, {} scratch{}\n", s.name, s.seconds,
               memory_text(s.peak_bytes), memory_text(s.peak_scratch_bytes),
               s.peak_device_bytes == 0 ? "" : ", " + memory_text(s.peak_device_bytes) + " of the GPU's");
  std::fflush(stdout);
}

std::vector<ClipTask> tasks_of(GenerateArguments& a, const GenerationDefaults& defaults) {
  if (!a.prompt_file.empty()) a.request["prompt"] = read_prompt_file(a.prompt_file);
  if (a.no_audio) a.request["audio"] = false;
  require(a.request.contains("prompt") || !a.samples.empty(),
          "no prompt: say what to show with -p TEXT, --prompt-file FILE or --samples FILE");
  BatchDefaults common{a.request, a.output, std::nullopt};
  if (!a.latents.empty()) common.latents_directory = a.latents;
  return a.samples.empty() ? make_variants(a.count, common, defaults)
                           : read_batch(a.samples, common, defaults);
}

/// What is written is neither read nor written twice.
void require_files_apart(const GenerateArguments& a, const std::vector<ClipTask>& tasks) {
  namespace fs = std::filesystem;
  std::map<fs::path, std::string> taken;
  const auto resolved = [](const fs::path& file) {
    std::error_code error;
    return fs::weakly_canonical(fs::absolute(file, error), error);
  };
  const auto read = [&](const fs::path& file, const char* what) {
    if (!file.empty()) taken.try_emplace(resolved(file), what);
  };
  const auto written = [&](const fs::path& file, const char* what) {
    if (file.empty()) return;
    const auto [other, added] = taken.try_emplace(resolved(file), what);
    require(added, "{}: {} would replace {}: choose another name", file.string(), what, other->second);
  };
  read(a.prompt_file, "the prompt's file");
  read(a.samples, "the list of samples");
  read(a.config, "the configuration");
  for (const ClipTask& task : tasks)
    for (const ImageInput& image : task.request.images) read(image.path, "a reference image");
  for (const ClipTask& task : tasks) written(task.output, "the clip");
  written(a.stats, "--stats");
  written(a.trace, "--profile");
}

void make_clips(GenerateArguments& a, const CheckpointRoot& root, EngineOptions engine) {
  std::vector<ClipTask> tasks = tasks_of(a, root.defaults());
  require_files_apart(a, tasks);
  const bool batch = !tasks.front().label.empty();
  std::optional<AtomicFile> stats;  // opened before the work
  if (!a.stats.empty()) stats.emplace(a.stats);

  if (!a.trace.empty()) {
    const AtomicFile writable(a.trace);  // known before the work
    engine.trace = a.trace;
  }

  ProgressBar progress;
  const InterruptGuard guard(progress);
  if (!a.enhance.url.empty()) enhance_tasks(tasks, a.enhance.options(), progress);
  print_plan(root, tasks.front(), engine);
  const std::vector<Report> reports = generate(root, tasks, progress, engine);
  dismiss(*engine.world);
  progress.finish();
  require(batch || reports.front().error.empty(), "{}", reports.front().error);
  if (stats) write_stats(*stats, reports, batch);
  print_peaks(reports.front());
  std::size_t failed = 0;
  for (std::size_t i = 0; i < tasks.size(); ++i) {
    failed += !reports[i].error.empty();
    if (reports[i].error.empty()) log_info("{}", tasks[i].output.string());
  }
  require(failed == 0, "{} of {} clips could not be made", failed, tasks.size());
}

void run_generate(GenerateArguments& a) {
  require(!a.root.empty(),
          "no checkpoint root: give -m ROOT or set MAGI2_CKPT_ROOT (\"magi2 init DIR\" makes a tiny one)");
  with_ranks([&](const std::shared_ptr<World>& world) {
    const CheckpointRoot root(
        a.root, a.config.empty() ? std::nullopt : std::optional<std::filesystem::path>(a.config));
    const EngineOptions engine = a.engine.options(world);
    if (world->rank() == 0)
      make_clips(a, root, engine);
    else
      follow(root, engine);
  });
}

void add_clip_options(CLI::App& c, GenerateArguments& a) {
  c.option_defaults()->group("Clip");
  auto* prompt = add_field<std::string>(c, a, "-p,--prompt", "prompt", "What to show and to let hear");
  c.add_option("--prompt-file", a.prompt_file, "Read the prompt from a file")
      ->type_name("FILE")
      ->excludes(prompt);
  c.add_option_function<std::vector<std::string>>(
       "-i,--image",
       [&a](const std::vector<std::string>& paths) {
         const bool named = paths.size() == 1 && !paths[0].empty() && paths[0][0] == '{';
         a.request["image"] = named ? nlohmann::json::parse(paths[0], nullptr, false) : nlohmann::json(paths);
       },
       "Reference image, may be repeated: <Figure 1> in the prompt is the first frame, <Figure 2> …; or "
       "{\"<Figure k>\": \"path\", …}")
      ->type_name("FILE");
  add_field<std::string>(c, a, "--preset", "preset",
                         "Size: 272p (448x256), 540p (896x512) or 1080p (540p refined to 1920x1088)");
  add_field<std::int64_t>(c, a, "-W,--width", "width",
                          "Pixels, a multiple of 16 (default: the root's; the release: 896)");
  add_field<std::int64_t>(c, a, "-H,--height", "height",
                          "Pixels, a multiple of 16 (default: the root's; the release: 512)");
  add_field<double>(c, a, "--seconds", "seconds",
                    "Length, 0.02 to 60 (default: the root's; the release: 10, what it was trained for)");
  add_field<std::int64_t>(c, a, "--steps", "steps",
                          "Denoising steps, 1 to 1000 (default: the root's; the release: 100)");
  add_field<std::int64_t>(c, a, "--seed", "seed", "Same seed, same clip (default: 42)");
  add_field<double>(c, a, "--cfg-video", "cfg_video",
                    "Guidance scale of the video (default: the root's; the release: 5)");
  add_field<double>(c, a, "--cfg-audio", "cfg_audio",
                    "Guidance scale of the audio (default: the root's; the release: 7)");
  add_field<std::string>(c, a, "--negative-prompt", "negative_prompt",
                         "What not to show (default: the official one)");
  add_field<std::string>(c, a, "--refine", "refine",
                         "Refine to this size, multiples of 16, at twice the frame rate")
      ->type_name("WxH");
  add_field<std::int64_t>(c, a, "--refiner-steps", "refiner_steps",
                          "Denoising steps of the refiner (default: the root's; the release: 5)");
  add_field<std::string>(c, a, "--vae", "vae", "Video decoder: turbo (default) or wan");
}

void add_file_options(CLI::App& c, GenerateArguments& a) {
  c.option_defaults()->group("Files");
  c.add_option("-o,--output", a.output, "The MP4 to write; several are numbered: clip-0.mp4, …")
      ->type_name("FILE")
      ->capture_default_str();
  add_field<std::int64_t>(c, a, "--output-width", "output_width",
                          "Resize the finished frames; with --output-height");
  add_field<std::int64_t>(c, a, "--output-height", "output_height",
                          "Resize the finished frames; with --output-width");
  c.add_flag("--no-audio", a.no_audio, "No sound track");
  c.add_option("--save-latents", a.latents, "Directory for the latents, as safetensors")->type_name("DIR");
  c.add_option("--stats", a.stats, "Write times, memory, steps and hashes as JSON")->type_name("FILE");
  c.add_option("--profile", a.trace, "Write a denoising step as a Chrome trace (ui.perfetto.dev shows it)")
      ->type_name("FILE");
}

}  // namespace

void add_generate_command(CLI::App& app, Work& work) {
  CLI::App& c = *app.add_subcommand("generate", "Make a clip from a prompt");
  auto a = std::make_shared<GenerateArguments>();
  c.add_option("-m,--model", a->root, "Checkpoint root")->envname("MAGI2_CKPT_ROOT")->type_name("DIR");
  add_clip_options(c, *a);
  add_file_options(c, *a);
  c.option_defaults()->group("Many clips");
  auto* samples =
      c.add_option("--samples", a->samples,
                   "A JSON list of objects with prompt or prompt_file, image, seed, output, … (other "
                   "options are their defaults)")
          ->type_name("FILE");
  c.add_option("-n,--count", a->count, "Make that many clips, with seed, seed + 1, …")
      ->capture_default_str()
      ->excludes(samples);
  c.option_defaults()->group("Prompt enhancement");
  auto* enhance =
      c.add_option("--enhance", a->enhance.url,
                   "Let a language model write the long prompt first: OpenAI-compatible endpoint, as "
                   "http://127.0.0.1:8000/v1 (key: MAGI2_LLM_API_KEY)")
          ->type_name("URL");
  for (CLI::Option* option : add_enhance_arguments(c, a->enhance, "llm-")) option->needs(enhance);
  add_engine_arguments(c, a->engine);
  add_field<std::string>(c, *a, "--dtype", "dtype", "Arithmetic: bf16 (default) or f32");
  c.add_option("--config", a->config,
               "Configuration of the official schema (default: the root's, else the release's)")
      ->type_name("FILE");
  c.callback([a, &work] { work = [a] { run_generate(*a); }; });
}

}  // namespace magi
