// SPDX-License-Identifier: Apache-2.0
// The options of the engine, which `generate` and `serve` share.
#pragma once

#include <string>

#include "run/engine_options.h"

namespace CLI {
class App;
}

namespace magi {

struct EngineArguments {
  std::string device, experts;
  int threads = 0;

  /// Also sets the number of threads.
  EngineOptions options() const;
};

void add_engine_arguments(CLI::App& command, EngineArguments& arguments);

}  // namespace magi
