// SPDX-License-Identifier: Apache-2.0
// The options of the engine, which `generate`, `serve` and `plan` share.
#pragma once

#include <cstddef>
#include <memory>
#include <optional>
#include <string>

#include "run/engine_options.h"

namespace CLI {
class App;
}

namespace magi {

struct EngineArguments {
  std::string device, experts;
  Degrees degrees{0, 0, 0};
  std::optional<double> vram, ram;  ///< GiB

  /// A rank of several computes on its own of the GPUs from `device` on.
  EngineOptions options(std::shared_ptr<World> world = nullptr) const;
};

/// Without the degrees, which add_degree_options() adds: a plan has none.
void add_engine_arguments(CLI::App& command, EngineArguments& arguments);
/// --threads: how many this program computes with, which is set as soon as it is read.
void add_threads_option(CLI::App& command);
/// Those of the environment's OMP_NUM_THREADS, unless they are absurdly many: then one for each processor.
void limit_threads();
/// A budget in GiB → bytes; Error, naming `option`, unless it is between 16 MiB and a million GiB.
std::size_t budget_bytes(double gib, const char* option);

}  // namespace magi
