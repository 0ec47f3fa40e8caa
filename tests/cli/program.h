// SPDX-License-Identifier: Apache-2.0
// Runs the built program as a person does, on a tiny root in a directory of its own.
#pragma once

#include <gtest/gtest.h>

#include <filesystem>
#include <string>
#include <vector>

#include "support/temp_dir.h"

namespace magi {

struct Outcome {
  int status = -1;  ///< exit status; 128 + n after signal n
  std::string out, err;
};

/// MAGI2_CKPT_ROOT is unset; the working directory is `directory`. As soon as standard error holds
/// `interrupt_when`, the program gets SIGINT.
Outcome run_program(const std::filesystem::path& directory, const std::vector<std::string>& arguments,
                    const std::string& interrupt_when = "");

/// A fresh tiny root in `root`, and an empty `work` to run in.
class ProgramTest : public testing::Test {
 protected:
  ProgramTest();

  std::filesystem::path root() const { return directory_ / "root"; }
  std::filesystem::path work() const { return directory_ / "work"; }
  std::filesystem::path write(const std::string& name, const std::string& content) const {
    return directory_.write("work/" + name, content);
  }
  /// `magi2 generate` of the smallest clip, with further arguments.
  Outcome generate(const std::vector<std::string>& arguments, const std::string& interrupt_when = "") const;
  /// Names in the working directory.
  std::vector<std::string> files() const;

  /// Exit status 1, one line "magi2: …" with `part` and no other line but progress and warnings; no file but
  /// those that were there.
  void expect_refused(const std::vector<std::string>& arguments, const std::string& part) const;
  /// The same for a whole outcome.
  static void expect_error_line(const Outcome& outcome, int status, const std::string& part);

 private:
  TempDir directory_;
};

}  // namespace magi
