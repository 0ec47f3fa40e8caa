// SPDX-License-Identifier: Apache-2.0
#include <CLI/CLI.hpp>
#include <limits>
#include <memory>
#include <optional>

#include "bench/bench.h"
#include "cli/commands.h"
#include "cli/engine_arguments.h"
#include "cli/progress_bar.h"
#include "cli/ranks.h"
#include "io/atomic_file.h"
#include "ops/devices.h"
#include "run/components.h"
#include "run/compute_device.h"
#include "run/sha256.h"

namespace magi {
namespace {

struct BenchArguments {
  BenchOptions options;
  std::string model = "preview", device, dtype = "bf16";
  std::string root, config, trace, json, experts;
  bool synthetic = false;
  std::optional<double> vram;
  std::optional<std::int64_t> distinct;
};

/// The model's part of a root, with the configuration that its loader reads.
void use_root(BenchOptions& o, const CheckpointRoot& root) {
  o.config = root.config();
  switch (o.model) {
    case BenchModel::preview:
      o.weights = root.preview();
      break;
    case BenchModel::refiner:
      o.weights = root.refiner();
      break;
    case BenchModel::text:
      o.weights = root.text_encoder();
      o.config = ConfigNode::read(*o.weights / "config.json");
      break;
    case BenchModel::turbo:
      o.weights = root.turbo_decoder_weights().parent_path();
      break;
    case BenchModel::audio:
      o.weights = root.audio_decoder();
      break;
  }
}

std::string sha256(const std::vector<Tensor>& result) {
  Sha256 sha;
  for (const Tensor& tensor : result) sha.add(tensor);
  return "sha256:" + sha.hex();
}

void run(BenchArguments& a) {
  require(a.synthetic != !a.root.empty(),
          "bench: say what to run: --synthetic for random weights, or -m ROOT for a checkpoint's");
  BenchOptions& o = a.options;
  o.model = bench_model(a.model);
  o.device = a.device.empty() ? default_device() : parse_device(a.device);
  o.digest = sha256;
  o.dtype = a.dtype == "f32" ? DType::f32 : DType::bf16;
  if (!a.experts.empty()) o.experts = expert_format(a.experts);
  if (!a.trace.empty()) o.trace = a.trace;
  if (a.vram) {
    o.vram_bytes = budget_bytes(*a.vram, "--vram");
    if (!a.distinct) o.distinct = std::numeric_limits<std::int32_t>::max();  // every layer its own
  }
  if (a.distinct) o.distinct = *a.distinct;
  const auto config = a.config.empty() ? std::nullopt : std::optional<std::filesystem::path>(a.config);
  if (!a.root.empty())
    use_root(o, CheckpointRoot(a.root, config));
  else if (config)
    o.config = ConfigNode(load_config(*config, ""), a.config);

  if (!a.json.empty()) const AtomicFile writable(a.json);  // known before the work
  with_ranks([&](const std::shared_ptr<World>& world) {
    o.world = world;
    ProgressBar progress;
    const InterruptGuard guard(progress);
    const BenchResult result = run_bench(o, progress);
    progress.finish();
    if (world->rank() > 0) return;
    fmt::print("{}", to_text(o, result));
    if (!a.json.empty()) write_json(o, result, a.json);
  });
}

}  // namespace

void add_bench_command(CLI::App& app, Work& work) {
  CLI::App& c = *app.add_subcommand("bench", "Time a model's steps, with random weights or a checkpoint's");
  auto a = std::make_shared<BenchArguments>();
  BenchOptions& o = a->options;
  c.add_flag("--synthetic", a->synthetic, "Random weights of the release's sizes, shared between layers");
  c.add_option("-m,--model", a->root, "Checkpoint root");
  c.add_option("--what", a->model, "Whose steps")
      ->check(CLI::IsMember({"preview", "refiner", "text", "turbo", "audio"}))
      ->capture_default_str();
  c.add_option("--config", a->config, "The model's configuration (default: the root's, else the release's)");
  c.add_option("--distinct", a->distinct,
               "Layers of a kind with random weights of their own (default: 1; with --vram all)");
  c.add_option(
      "--vram", a->vram,
      "GiB of the GPU's memory to stay within: the preview's layers are streamed from host memory, each with "
      "random weights of its own");
  c.add_option("--preset", o.preset, "272p, 540p or 1080p")->capture_default_str();
  c.add_option("-W,--width", o.width, "Pixels, a multiple of 16");
  c.add_option("-H,--height", o.height, "Pixels, a multiple of 16");
  c.add_option("--seconds", o.seconds, "Length of the clip")->capture_default_str();
  c.add_option("--text-tokens", o.text_tokens, "Of the prompt (default: 429; text encoder 2500)");
  c.add_option("--steps", o.steps, "Steps to run; the first two do not count")->capture_default_str();
  c.add_option("--device", a->device, "cpu, cuda or cuda:N (default: the first GPU, else the CPU)");
  c.add_option("--dtype", a->dtype, "Arithmetic")
      ->check(CLI::IsMember({"f32", "bf16"}))
      ->capture_default_str();
  c.add_option("--experts", a->experts, "The preview's expert weights (default: as stored)")
      ->check(CLI::IsMember({"bf16", "nvfp4", "nvfp4-fake"}));
  add_degree_options(c, o.degrees);
  c.add_option("--alone", o.alone_seconds, "Seconds of one rank's step, to state the parallel efficiency")
      ->check(CLI::PositiveNumber);
  add_threads_option(c);
  c.add_flag("--ops", o.operations, "One more step, with every operation timed");
  c.add_option("--profile", a->trace, "Write that step as a Chrome trace");
  c.add_option("--json", a->json, "Write everything as JSON");
  c.callback([a, &work] { work = [a] { run(*a); }; });
}

}  // namespace magi
