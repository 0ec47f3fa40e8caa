// SPDX-License-Identifier: Apache-2.0
#include <CLI/CLI.hpp>
#include <filesystem>
#include <memory>

#include "cli/commands.h"
#include "cli/progress_bar.h"
#include "core/log.h"
#include "run/tiny_root.h"

namespace magi {
namespace {

struct InitArguments {
  std::string directory;
  std::uint64_t seed = 1;
  bool if_missing = false;
};

void run_init(const InitArguments& a) {
  if (a.if_missing && std::filesystem::exists(std::filesystem::path(a.directory) / "config.json")) return;
  Progress progress;
  const InterruptGuard guard(progress);
  write_tiny_root(a.directory, a.seed, [&] { progress.check(); });
  log_info(
      "{}: a complete tiny checkpoint root. Its weights are random and untrained: clips show moving colours "
      "and noise.",
      a.directory);
}

}  // namespace

void add_init_command(CLI::App& app, Work& work) {
  CLI::App& c = *app.add_subcommand("init", "Write a tiny checkpoint root with random, untrained weights");
  auto a = std::make_shared<InitArguments>();
  c.add_option("directory", a->directory, "Directory to make")->type_name("DIR")->required();
  c.add_option("--seed", a->seed, "Same seed, same weights")->capture_default_str();
  c.add_flag("--if-missing", a->if_missing, "Do nothing where the directory holds one already");
  c.callback([a, &work] { work = [a] { run_init(*a); }; });
}

}  // namespace magi
