// SPDX-License-Identifier: Apache-2.0
#include <CLI/CLI.hpp>
#include <memory>
#include <nlohmann/json.hpp>

#include "cli/clip_arguments.h"
#include "cli/commands.h"
#include "cli/engine_arguments.h"
#include "core/error.h"
#include "run/compute_device.h"
#include "run/gpu_plan.h"
#include "run/memory_plan.h"

namespace magi {
namespace {

struct PlanArguments {
  std::string root, config;
  bool json = false;
  std::vector<int> gpus;
  std::vector<std::string> networks{"nvlink", "infiniband"};
  EngineArguments engine;
  nlohmann::json request{{"prompt", "a clip"}};
};

/// GPUs that this machine need not have: the dry run is the CPU's where it has none.
void run_gpu_plan(const PlanArguments& a, const CheckpointRoot& root, const Request& request) {
  EngineOptions options{default_device()};
  if (!a.engine.experts.empty()) options.experts = expert_format(a.engine.experts);
  const GpuPlan plan = plan_gpus(root, request, options, a.gpus, a.networks,
                                 a.engine.vram ? budget_bytes(*a.engine.vram, "--vram") : kH200Bytes);
  if (a.json)
    fmt::print("{}\n", to_json(plan).dump(2));
  else
    fmt::print("{}", to_text(plan));
  for (const GpuCount& count : plan.counts)
    require(count.recommended() != nullptr,
            "plan: no choice of degrees fits on {} GPUs; take more, or --experts nvfp4", count.gpus);
}

void run_plan(const PlanArguments& a) {
  const bool release = a.config == "release";
  require(release || !a.root.empty(),
          "plan: give -m ROOT, or --config release for the released model without its files");
  const std::optional<std::filesystem::path> config =
      a.config.empty() ? std::nullopt : std::optional<std::filesystem::path>(a.config);
  const CheckpointRoot root = release ? CheckpointRoot::release() : CheckpointRoot(a.root, config);
  const Request request = Request::from_json(a.request, root.defaults(), "plan");
  if (!a.gpus.empty()) return run_gpu_plan(a, root, request);
  const MemoryPlan plan = plan_memory(root, request, a.engine.options());
  if (a.json)
    fmt::print("{}\n", to_json(plan).dump(2));
  else
    fmt::print("{}", to_text(plan));
  const std::size_t lacking = plan.impossible.size();
  require(lacking == 0, "plan: {} of {} stages do{} not fit", lacking, lacking + plan.stages.size(),
          lacking == 1 ? "es" : "");
}

}  // namespace

void add_plan_command(CLI::App& app, Work& work) {
  CLI::App& c =
      *app.add_subcommand("plan", "Tell what a clip will take, stage by stage, before anything is loaded");
  auto a = std::make_shared<PlanArguments>();
  add_clip_options(c, a->root, a->request);
  add_engine_arguments(c, a->engine);
  c.add_option("--config", a->config,
               "Configuration of the official schema (default: the root's); \"release\": the release's, "
               "without files")
      ->type_name("FILE");
  c.option_defaults()->group("Prediction");
  auto* gpus =
      c.add_option("--gpus", a->gpus,
                   "Predict a step over so many H200s instead, and the best degrees: a number or several, "
                   "8,16,64; --vram: GiB of each (default 139)")
          ->delimiter(',')
          ->check(CLI::Range(1, kMostGpus));
  c.add_option(
       "--network", a->networks,
       "Between the GPUs: nvlink (one domain), infiniband or ethernet (between nodes of eight), pcie; may "
       "be several")
      ->delimiter(',')
      ->check(CLI::IsMember({"nvlink", "infiniband", "ethernet", "pcie"}))
      ->capture_default_str()
      ->needs(gpus);
  c.add_flag("--json", a->json, "As JSON");
  c.callback([a, &work] { work = [a] { run_plan(*a); }; });
}

}  // namespace magi
