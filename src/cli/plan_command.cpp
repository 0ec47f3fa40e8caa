// SPDX-License-Identifier: Apache-2.0
#include <CLI/CLI.hpp>
#include <memory>
#include <nlohmann/json.hpp>

#include "cli/commands.h"
#include "cli/engine_arguments.h"
#include "core/error.h"
#include "run/memory_plan.h"

namespace magi {
namespace {

struct PlanArguments {
  std::string root, config;
  bool json = false;
  EngineArguments engine;
  nlohmann::json request{{"prompt", "a clip"}};
};

void run_plan(const PlanArguments& a) {
  require(!a.root.empty() || a.config == "release",
          "plan: give -m ROOT, or --config release for the released model without its files");
  const CheckpointRoot root =
      a.root.empty() ? CheckpointRoot::release()
                     : CheckpointRoot(a.root, a.config.empty() || a.config == "release"
                                                  ? std::nullopt
                                                  : std::optional<std::filesystem::path>(a.config));
  const Request request = Request::from_json(a.request, root.defaults(), "plan");
  const MemoryPlan plan = plan_memory(root, request, a.engine.options());
  if (a.json)
    fmt::print("{}\n", to_json(plan).dump(2));
  else
    fmt::print("{}", to_text(plan));
  require(plan.impossible.empty(), "plan: {}", plan.impossible.front());
}

template <typename T>
void add_field(CLI::App& c, PlanArguments& a, const std::string& flag, const std::string& key,
               const std::string& help) {
  c.add_option_function<T>(
       flag, [&a, key](const T& value) { a.request[key] = value; }, help)
      ->take_last();
}

}  // namespace

void add_plan_command(CLI::App& app, Work& work) {
  CLI::App& c =
      *app.add_subcommand("plan", "Tell what a clip will take, stage by stage, before anything is loaded");
  auto a = std::make_shared<PlanArguments>();
  c.add_option("-m,--model", a->root, "Checkpoint root")->envname("MAGI2_CKPT_ROOT");
  c.add_option("--config", a->config,
               "Configuration of the official schema (default: the root's); \"release\": the release's, "
               "without files");
  add_field<std::string>(c, *a, "-p,--prompt", "prompt", "The prompt, whose length counts");
  add_field<std::string>(c, *a, "--preset", "preset", "272p, 540p or 1080p");
  add_field<std::int64_t>(c, *a, "-W,--width", "width", "Pixels, a multiple of 16");
  add_field<std::int64_t>(c, *a, "-H,--height", "height", "Pixels, a multiple of 16");
  add_field<double>(c, *a, "--seconds", "seconds", "Length of the clip");
  add_field<std::int64_t>(c, *a, "--steps", "steps", "Denoising steps");
  add_field<std::string>(c, *a, "--refine", "refine", "Refine to WIDTHxHEIGHT, multiples of 16");
  add_field<std::int64_t>(c, *a, "--refiner-steps", "refiner_steps", "Denoising steps of the refiner");
  add_field<std::string>(c, *a, "--vae", "vae", "Video decoder: turbo (default) or wan");
  add_field<std::string>(c, *a, "--dtype", "dtype", "Arithmetic: bf16 (default) or f32");
  c.add_option_function<std::vector<std::string>>(
      "-i,--image", [a = a.get()](const std::vector<std::string>& paths) { a->request["image"] = paths; },
      "Reference image, may be repeated");
  add_engine_arguments(c, a->engine);
  c.add_flag("--json", a->json, "As JSON");
  c.callback([a, &work] { work = [a] { run_plan(*a); }; });
}

}  // namespace magi
