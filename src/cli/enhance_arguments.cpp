// SPDX-License-Identifier: Apache-2.0
#include "cli/enhance_arguments.h"

#include <CLI/CLI.hpp>

namespace magi {

EnhanceOptions EnhanceArguments::options() const {
  EnhanceOptions options = EnhanceOptions::from_environment();
  options.base_url = url;
  options.model = model;
  options.timeout_s = timeout_s.value_or(options.timeout_s);
  options.retries = retries.value_or(options.retries);
  if (no_cache) options.cache_directory.reset();
  return options;
}

std::vector<CLI::Option*> add_enhance_arguments(CLI::App& command, EnhanceArguments& arguments,
                                                const std::string& prefix) {
  return {command
              .add_option("--llm-model", arguments.model,
                          "Name of the language model (default: the server's own)")
              ->type_name("NAME"),
          command.add_option("--" + prefix + "timeout", arguments.timeout_s,
                             "Seconds to wait for the language model (default: 180)"),
          command.add_option("--" + prefix + "retries", arguments.retries,
                             "Further attempts after its bad answers (default: 2)"),
          command.add_flag("--no-" + prefix + "cache", arguments.no_cache,
                           "Neither use its answers kept on disk nor keep new ones")};
}

}  // namespace magi
