// SPDX-License-Identifier: Apache-2.0
// Replays the inputs that fuzzers found and some made by hand: each must be read or refused with an Error.
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <iterator>

#include "core/error.h"
#include "fuzz/text_targets.h"

namespace magi {
namespace {

template <typename Reader>
void replay(const std::string& corpus, Reader read) {
  int read_well = 0, refused = 0;
  for (const auto& file :
       std::filesystem::directory_iterator(MAGI2_SOURCE_DIR "/tests/text/corpus/" + corpus)) {
    SCOPED_TRACE(file.path().string());
    std::ifstream in(file.path(), std::ios::binary);
    const std::vector<char> bytes{std::istreambuf_iterator<char>(in), {}};
    try {
      read(std::string_view(bytes.data(), bytes.size()));
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

TEST(Corpus, TokenizerFile) {
  replay("tokenizer_file", read_tokenizer);
}
TEST(Corpus, TokenizerText) {
  replay("tokenizer_text", tokenize_text);
}
TEST(Corpus, Prompt) {
  replay("prompt", prepare_any_prompt);
}

}  // namespace
}  // namespace magi
