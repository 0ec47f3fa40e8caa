// SPDX-License-Identifier: Apache-2.0
#include "io/read_file.h"

#include <gtest/gtest.h>
#include <sys/stat.h>

#include <fstream>
#include <thread>

#include "support/expect_error.h"
#include "support/temp_dir.h"

namespace magi {
namespace {

TEST(ReadFile, GivesAllBytesUpToTheLimit) {
  const TempDir dir;
  const std::string content = std::string(200'000, 'x') + std::string(1, '\0') + "\r\n\xff";
  EXPECT_EQ(read_file(dir.write("full", content), content.size()), content);
  EXPECT_EQ(read_file(dir.write("empty", ""), 0), "");
  expect_error([&] { read_file(dir / "full", content.size() - 1); },
               "full: cannot be read: it holds more than 200003");
  expect_error([&] { read_file("/dev/zero", 1 << 20); }, "/dev/zero: cannot be read: it holds more than");
}

TEST(ReadFile, SaysWhyNot) {
  const TempDir dir;
  expect_error([&] { read_file(dir / "missing", 1); }, "missing: cannot be read: No such file");
  expect_error([&] { read_file(dir.path(), 1); }, "cannot be read: Is a directory");
}

TEST(ReadFile, TakesAPipe) {
  const TempDir dir;
  ASSERT_EQ(::mkfifo((dir / "pipe").c_str(), 0600), 0);
  std::thread writer([&] { std::ofstream(dir / "pipe") << "through a pipe"; });
  EXPECT_EQ(read_file(dir / "pipe", 100), "through a pipe");
  writer.join();
}

}  // namespace
}  // namespace magi
