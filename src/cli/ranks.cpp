// SPDX-License-Identifier: Apache-2.0
#include "cli/ranks.h"

#include <csignal>

#include "core/log.h"

namespace magi {

void add_degree_options(CLI::App& command, Degrees& degrees) {
  const char* group = "Ranks (under mpirun, srun or torchrun)";
  command
      .add_option("--sp", degrees.sp, "Ranks that share the tokens of a guidance branch (default: chosen)")
      ->check(CLI::PositiveNumber)
      ->group(group);
  command
      .add_option("--cfg", degrees.cfg,
                  "Groups of ranks that share the guidance branches: 1 or 2 (default: chosen); the guidance "
                  "scales are "
                  "--cfg-video and --cfg-audio")
      ->check(CLI::PositiveNumber)
      ->group(group);
  command.add_option("--ep", degrees.ep, "Ranks that share the experts (default: chosen)")
      ->check(CLI::PositiveNumber)
      ->group(group);
}

void with_ranks(const std::function<void(const std::shared_ptr<World>&)>& work) {
  const std::shared_ptr<World> world = World::join();
  if (world->rank() > 0) {
    set_log_sink([](LogLevel, std::string_view) {});
    // A launcher hands Ctrl-C to all; rank 0 decides what becomes of it.
    for (const int interruption : {SIGINT, SIGTERM}) std::signal(interruption, SIG_IGN);
  }
  try {
    work(world);
    world->leave();
  } catch (const RankLost&) {
    throw;
  } catch (const std::exception& e) {
    world->fail(e.what());
    if (world->rank() > 0) throw RankLost(e.what(), world->monitor()->told());
    throw;
  }
}

}  // namespace magi
