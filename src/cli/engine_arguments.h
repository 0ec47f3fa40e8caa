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
  int threads = 0;
  Degrees degrees{0, 0, 0};
  std::optional<double> vram, ram;  ///< GiB

  /// Also sets the number of threads. A rank of several computes on its own of the GPUs from `device` on.
  EngineOptions options(std::shared_ptr<World> world = nullptr) const;
};

void add_engine_arguments(CLI::App& command, EngineArguments& arguments);
/// A budget in GiB → bytes; Error, naming `option`, unless it is between 16 MiB and a million GiB.
std::size_t budget_bytes(double gib, const char* option);

}  // namespace magi
