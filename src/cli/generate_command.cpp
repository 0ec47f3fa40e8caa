// SPDX-License-Identifier: Apache-2.0
#include <CLI/CLI.hpp>
#include <cstdio>
#include <filesystem>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>

#include "cli/clip_arguments.h"
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

/// One clip's report as it is; of a batch, a list.
void write_stats(AtomicFile& file, const std::vector<Report>& reports, bool batch) {
  nlohmann::json stats = nlohmann::json::array();
  for (const Report& report : reports) stats.push_back(report.to_json());
  const std::string text =
      (batch ? stats : stats.at(0)).dump(2, ' ', false, nlohmann::json::error_handler_t::replace) + "\n";
  file.write(text.data(), text.size());
  file.commit();
}

/// What the first clip will take of one device; nothing where it cannot be told or does not fit, which the
/// work itself will say.
void print_plan(const CheckpointRoot& root, const ClipTask& task, const EngineOptions& engine) {
  if (!task.error.empty() || (engine.world && !engine.world->alone())) return;
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

void add_making_options(CLI::App& c, GenerateArguments& a, CLI::Option* prompt) {
  c.add_option("--prompt-file", a.prompt_file, "Read the prompt from a file")
      ->type_name("FILE")
      ->excludes(prompt);
  add_field<std::string>(c, a.request, "--negative-prompt", "negative_prompt",
                         "What not to show (default: the official one)");
  add_field<std::int64_t>(c, a.request, "--seed", "seed", "Same seed, same clip (default: 42)");
  add_field<double>(c, a.request, "--cfg-video", "cfg_video",
                    "Guidance scale of the video, a number (default: the root's; the release: 5)");
  add_field<double>(c, a.request, "--cfg-audio", "cfg_audio",
                    "Guidance scale of the audio, a number (default: the root's; the release: 7)");
}

void add_file_options(CLI::App& c, GenerateArguments& a) {
  c.option_defaults()->group("Files");
  c.add_option("-o,--output", a.output, "The MP4 to write; several are numbered: clip-0.mp4, …")
      ->type_name("FILE")
      ->capture_default_str();
  add_field<std::int64_t>(c, a.request, "--output-width", "output_width",
                          "Resize the finished frames; with --output-height");
  add_field<std::int64_t>(c, a.request, "--output-height", "output_height",
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
  add_making_options(c, *a, add_clip_options(c, a->root, a->request));
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
  add_degree_options(c, a->engine.degrees);
  c.add_option("--config", a->config,
               "Configuration of the official schema (default: the root's, else the release's)")
      ->type_name("FILE");
  c.callback([a, &work] { work = [a] { run_generate(*a); }; });
}

}  // namespace magi
