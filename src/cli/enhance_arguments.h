// SPDX-License-Identifier: Apache-2.0
// The options of prompt enhancement, which `enhance` and `generate` share.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "run/enhance.h"

namespace CLI {
class App;
class Option;
}  // namespace CLI

namespace magi {

struct EnhanceArguments {
  std::string url;
  std::string model;
  std::optional<double> timeout_s;
  std::optional<int> retries;
  bool no_cache = false;

  /// With what is not given from the environment.
  EnhanceOptions options() const;
};

/// --llm-model and, with `prefix` ("llm-" where their names would say too little), --timeout, --retries,
/// --no-cache.
std::vector<CLI::Option*> add_enhance_arguments(CLI::App& command, EnhanceArguments& arguments,
                                                const std::string& prefix);

}  // namespace magi
