// SPDX-License-Identifier: Apache-2.0
#include <fcntl.h>

#include <CLI/CLI.hpp>
#include <cerrno>
#include <cmath>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <functional>
#include <new>
#include <string>

#include "cli/commands.h"
#include "cli/engine_arguments.h"
#include "comm/monitor.h"
#include "core/error.h"
#include "core/standard_error.h"

namespace magi {
namespace {

/// Whatever the caller left closed or forbidden must end in an error of ours, not in a signal or a lost file.
void prepare_process() {
  for (int fd : {0, 1, 2})  // else the next file that is opened would be taken for a standard stream
    while (::fcntl(fd, F_GETFD) < 0 && ::open("/dev/null", O_RDWR) >= 0) {
    }
  std::signal(SIGXFSZ, SIG_IGN);  // a limit on file sizes: write() says so
  limit_threads();
}

// The library's conversion takes "nan" and "inf", and ends at the largest integer without a word.

std::string refuse_infinite(const std::string& text) {
  return std::isfinite(std::strtod(text.c_str(), nullptr)) ? "" : "expected a number, found " + text;
}

std::string refuse_too_large(const std::string& text) {
  errno = 0;
  std::strtoll(text.c_str(), nullptr, 0);
  return errno == ERANGE ? text + " is out of range" : "";
}

std::string refuse_negative(const std::string& text) {
  return text.starts_with('-') ? "expected at least 0, found " + text : "";
}

void check_numbers(CLI::App& app) {
  const auto first = [](CLI::Option* option, std::string (*refuse)(const std::string&)) {
    option->transform(CLI::Validator(std::function<std::string(std::string&)>(refuse), ""));
  };
  for (CLI::App* command : app.get_subcommands({}))
    for (CLI::Option* option : command->get_options()) {
      const std::string type = option->get_type_name();
      if (type.starts_with("FLOAT")) first(option, refuse_infinite);
      if (type.starts_with("INT") || type.starts_with("UINT")) first(option, refuse_too_large);
      if (type.starts_with("UINT")) first(option, refuse_negative);
    }
}

/// What was printed has arrived.
void require_printed() {
  require(std::fflush(stdout) == 0 && std::ferror(stdout) == 0, "standard output could not be written");
}

}  // namespace

int run_command_line(int argc, char** argv) {
  prepare_process();
  CLI::App app("MAGI-2 Preview: videos with synchronised sound, from text", "magi2");
  app.set_version_flag("--version", std::string("magi2 ") + MAGI2_VERSION);
  app.require_subcommand(1);
  Work work;
  add_generate_command(app, work);
  add_enhance_command(app, work);
  add_serve_command(app, work);
  add_plan_command(app, work);
  add_init_command(app, work);
  add_inspect_command(app, work);
  add_quantize_command(app, work);
  add_bench_command(app, work);
  check_numbers(app);
  app.footer(  // last: subcommands would inherit it
      "magi2 SUBCOMMAND --help lists its options. A first clip, of a tiny untrained model:\n"
      "  magi2 init tiny && magi2 generate -m tiny -p \"A red fox walks through fresh snow.\"");
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& e) {
    if (e.get_exit_code() == 0) return app.exit(e);  // --help, --version
    const auto chosen = app.get_subcommands();
    if (argc <= 1) print_error("{}\n", app.help());
    print_error("magi2: {}; see magi2 {}--help\n", e.what(),
                chosen.empty() ? "" : chosen.front()->get_name() + " ");
    return 2;
  }
  try {
    work();
    require_printed();
    return 0;
  } catch (const Cancelled&) {
    print_error("magi2: interrupted; no unfinished file was left\n");
    return 130;
  } catch (const RankLost& e) {
    if (!e.told()) print_error("magi2: {}\n", e.what());
  } catch (const std::filesystem::filesystem_error& e) {
    print_error("magi2: {}: {}\n", e.path1().string(), e.code().message());
  } catch (const std::bad_alloc&) {
    print_error("magi2: out of memory; fewer seconds or a smaller size need less\n");
  } catch (const std::exception& e) {
    print_error("magi2: {}\n", e.what());
  }
  return 1;
}

}  // namespace magi
