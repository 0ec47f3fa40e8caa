// SPDX-License-Identifier: Apache-2.0
// The commands of `magi2`. Each adds its subcommand with its options; the chosen one's work runs after
// parsing.
#pragma once

#include <functional>

namespace CLI {
class App;
}

namespace magi {

/// What the parsed command line asks for.
using Work = std::function<void()>;

void add_generate_command(CLI::App& app, Work& work);
void add_enhance_command(CLI::App& app, Work& work);
void add_serve_command(CLI::App& app, Work& work);
void add_plan_command(CLI::App& app, Work& work);
void add_init_command(CLI::App& app, Work& work);
void add_inspect_command(CLI::App& app, Work& work);
void add_quantize_command(CLI::App& app, Work& work);
void add_bench_command(CLI::App& app, Work& work);

/// Parses, runs, reports: the exit status is 0, 1 for an error, 2 for a wrong command line, 130 when
/// interrupted.
int run_command_line(int argc, char** argv);

}  // namespace magi
