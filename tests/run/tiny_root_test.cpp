// SPDX-License-Identifier: Apache-2.0
#include "run/tiny_root.h"

#include <gtest/gtest.h>

#include "core/error.h"
#include "core/log.h"
#include "support/temp_dir.h"

namespace magi {
namespace {

TEST(TinyRoot, TellsOfWhatAKilledOneLeft) {
  const TempDir directory;
  std::filesystem::create_directories(directory / "root.partial-123");
  std::string log;
  set_log_sink([&](LogLevel, std::string_view line) { log += line; });
  write_tiny_root(directory / "root", 1);
  set_log_sink({});
  EXPECT_NE(log.find("root.partial-123: left by an init that was killed; remove it"), std::string::npos)
      << log;
}

TEST(TinyRoot, CancelledBetweenAnyTwoFilesLeavesNothing) {
  const TempDir directory;
  for (int checks = 0;; ++checks) {
    int left = checks;
    try {
      write_tiny_root(directory / "root", 1, [&] {
        if (left-- == 0) throw Cancelled();
      });
      EXPECT_GT(checks, 3);
      break;
    } catch (const Cancelled&) {
      EXPECT_TRUE(std::filesystem::is_empty(directory.path())) << "after " << checks << " checks";
    }
  }
}

}  // namespace
}  // namespace magi
