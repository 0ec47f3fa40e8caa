// SPDX-License-Identifier: Apache-2.0
#include <CLI/CLI.hpp>
#include <memory>

#include "cli/commands.h"
#include "cli/engine_arguments.h"
#include "cli/progress_bar.h"
#include "core/log.h"
#include "run/quantize.h"
#include "run/report.h"

namespace magi {
namespace {

struct QuantizeArguments {
  std::string root, out, config;
  std::string experts = "nvfp4", text_encoder = "bf16";
};

void run_quantize(const QuantizeArguments& a) {
  const CheckpointRoot root(a.root,
                            a.config.empty() ? std::nullopt : std::optional<std::filesystem::path>(a.config));
  ProgressBar progress;
  const InterruptGuard guard(progress);
  quantize(root, a.out, {a.experts == "nvfp4", a.text_encoder == "nvfp4"}, progress);
  progress.finish();
  log_info("highest memory {:.2f} GB", static_cast<double>(peak_resident_bytes()) / 1e9);
}

}  // namespace

void add_quantize_command(CLI::App& app, Work& work) {
  CLI::App& c = *app.add_subcommand(
      "quantize", "Convert a released checkpoint root to a native one: smaller, checksummed, a file a layer");
  auto a = std::make_shared<QuantizeArguments>();
  c.add_option("root", a->root, "The released root")->type_name("DIR")->required();
  c.add_option("out", a->out, "The native root: a new directory, or one left unfinished by the same command")
      ->type_name("DIR")
      ->required();
  c.add_option("--experts", a->experts, "Expert weights: nvfp4 (four bits) or bf16")
      ->check(CLI::IsMember({"bf16", "nvfp4"}))
      ->capture_default_str();
  c.add_option("--text-encoder", a->text_encoder, "The text encoder's linear layers")
      ->check(CLI::IsMember({"bf16", "nvfp4"}))
      ->capture_default_str();
  c.add_option("--config", a->config,
               "Configuration of the official schema (default: the root's, else the release's)")
      ->type_name("FILE");
  add_threads_option(c);
  c.callback([a, &work] { work = [a] { run_quantize(*a); }; });
}

}  // namespace magi
