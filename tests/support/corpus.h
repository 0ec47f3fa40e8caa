// SPDX-License-Identifier: Apache-2.0
// Replays the inputs that fuzzers found and some made by hand: each must be read or refused with an Error of
// one line.
#pragma once

#include <gtest/gtest.h>

#include <cstdio>
#include <exception>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "core/error.h"
#include "support/file_bytes.h"

namespace magi {

/// `read` gets the contents of each file in tests/`corpus`, in memory of just that size, so that a sanitizer
/// sees one byte too many. Some must be read and some refused.
template <typename Reader>
void replay_corpus(const std::string& corpus, Reader read) {
  int read_well = 0, refused = 0;
  for (const auto& file : std::filesystem::directory_iterator(MAGI2_SOURCE_DIR "/tests/" + corpus)) {
    SCOPED_TRACE(file.path().string());
    const std::string contents = bytes_of(file.path());
    const std::vector<char> exact(contents.begin(), contents.end());
    try {
      read(std::string_view(exact.data(), exact.size()));
      ++read_well;
    } catch (const Error& error) {
      EXPECT_EQ(std::string_view(error.what()).find('\n'), std::string_view::npos) << error.what();
      ++refused;
    } catch (const std::exception& error) {
      ADD_FAILURE() << "not an Error: " << error.what();
    }
  }
  std::printf("%s: %d read, %d refused\n", corpus.c_str(), read_well, refused);
  EXPECT_GT(refused, 0);
  EXPECT_GT(read_well, 0);
}

}  // namespace magi
