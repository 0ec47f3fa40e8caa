// SPDX-License-Identifier: Apache-2.0
// Replays the inputs that fuzzers found and some made by hand: each must be read or refused with an Error.
#include <gtest/gtest.h>

#include <filesystem>

#include "fuzz/io_targets.h"
#include "io/mapped_file.h"

namespace magi {
namespace {

template <typename Reader>
void replay(const std::string& corpus, Reader read) {
  int read_well = 0, refused = 0;
  for (const auto& file :
       std::filesystem::directory_iterator(std::string(MAGI2_SOURCE_DIR "/tests/io/corpus/") + corpus)) {
    SCOPED_TRACE(file.path().string());
    const auto mapped = MappedFile::open(file.path());
    const auto bytes = mapped->bytes();
    const std::vector<std::byte> exact(bytes.begin(),
                                       bytes.end());  // the sanitizer then sees one byte too many
    try {
      read(exact);
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

TEST(Corpus, Safetensors) {
  replay("safetensors", read_safetensors);
}
TEST(Corpus, Pickle) {
  replay("pickle", read_pickle);
}
TEST(Corpus, TorchFile) {
  replay("torch_file", read_torch_file);
}
TEST(Corpus, Config) {
  replay("config", [](std::span<const std::byte> bytes) {
    read_config({reinterpret_cast<const char*>(bytes.data()), bytes.size()});
  });
}

}  // namespace
}  // namespace magi
