// SPDX-License-Identifier: Apache-2.0
#include "cli/program.h"

#include <fcntl.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <sstream>
#include <thread>

#include "run/tiny_root.h"

namespace magi {
namespace {

namespace fs = std::filesystem;
using Clock = std::chrono::steady_clock;

std::string content_of(const fs::path& file) {
  std::ifstream in(file, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

/// Waits; interrupts when the text has come.
int wait_for(pid_t pid, const fs::path& err, const std::string& interrupt_when) {
  const auto start = Clock::now();
  bool sent = interrupt_when.empty();
  for (int state = 0;; std::this_thread::sleep_for(std::chrono::milliseconds(2))) {
    if (waitpid(pid, &state, WNOHANG) == pid)
      return WIFEXITED(state) ? WEXITSTATUS(state) : 128 + WTERMSIG(state);
    if (!sent && content_of(err).find(interrupt_when) != std::string::npos) sent = kill(pid, SIGINT) == 0;
    if (Clock::now() - start > std::chrono::seconds(120)) kill(pid, SIGKILL);
  }
}

}  // namespace

Outcome run_program(const fs::path& directory, const std::vector<std::string>& arguments,
                    const std::string& interrupt_when) {
  const TempDir streams;
  const fs::path out = streams / "out", err = streams / "err";
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_addchdir_np(&actions, directory.c_str());
  posix_spawn_file_actions_addopen(&actions, STDIN_FILENO, "/dev/null", O_RDONLY, 0);
  posix_spawn_file_actions_addopen(&actions, STDOUT_FILENO, out.c_str(), O_WRONLY | O_CREAT, 0600);
  posix_spawn_file_actions_addopen(&actions, STDERR_FILENO, err.c_str(), O_WRONLY | O_CREAT, 0600);

  unsetenv("MAGI2_CKPT_ROOT");
  setenv("OMP_WAIT_POLICY", "passive", 1);
  std::vector<char*> argv{const_cast<char*>(MAGI2_PROGRAM)};
  for (const std::string& argument : arguments) argv.push_back(const_cast<char*>(argument.c_str()));
  argv.push_back(nullptr);
  pid_t pid = -1;
  const int error = posix_spawn(&pid, MAGI2_PROGRAM, &actions, nullptr, argv.data(), environ);
  posix_spawn_file_actions_destroy(&actions);
  if (error != 0) {
    ADD_FAILURE() << MAGI2_PROGRAM << " cannot be run";
    return {};
  }
  Outcome outcome;
  outcome.status = wait_for(pid, err, interrupt_when);
  outcome.out = content_of(out);
  outcome.err = content_of(err);
  return outcome;
}

ProgramTest::ProgramTest() {
  write_tiny_root(root(), 1);
  fs::create_directories(work());
}

Outcome ProgramTest::generate(const std::vector<std::string>& arguments,
                              const std::string& interrupt_when) const {
  std::vector<std::string> all{"generate", "-m",        root().string(), "-W",      "64", "-H",
                               "64",       "--seconds", "0.2",           "--steps", "1"};
  all.insert(all.end(), arguments.begin(), arguments.end());
  return run_program(work(), all, interrupt_when);
}

std::vector<std::string> ProgramTest::files() const {
  std::vector<std::string> names;
  for (const auto& entry : fs::recursive_directory_iterator(work()))
    names.push_back(entry.path().lexically_relative(work()).string());
  std::ranges::sort(names);
  return names;
}

void ProgramTest::expect_error_line(const Outcome& outcome, int status, const std::string& part) {
  EXPECT_EQ(outcome.status, status) << outcome.err;
  std::string line, last;
  int errors = 0;
  for (std::istringstream lines(outcome.err); std::getline(lines, line); last = line)
    errors += line.starts_with("magi2: ");
  EXPECT_EQ(errors, 1) << outcome.err;
  EXPECT_TRUE(last.starts_with("magi2: ")) << outcome.err;
  EXPECT_NE(last.find(part), std::string::npos) << "lacks \"" << part << "\":\n" << outcome.err;
  EXPECT_EQ(last.find("std::"), std::string::npos) << last;
}

void ProgramTest::expect_refused(const std::vector<std::string>& arguments, const std::string& part) const {
  SCOPED_TRACE(part);
  const std::vector<std::string> before = files();
  expect_error_line(generate(arguments), 1, part);
  EXPECT_EQ(files(), before);
}

}  // namespace magi
