// SPDX-License-Identifier: Apache-2.0
// Replays the inputs that fuzzers found and some made by hand: each must be read or refused with an Error.
#include "support/corpus.h"

#include "fuzz/io_targets.h"

namespace magi {
namespace {

/// As bytes, what the parsers of files take.
template <typename Parser>
auto as_bytes(Parser parse) {
  return [=](std::string_view text) { parse(std::as_bytes(std::span(text))); };
}

TEST(Corpus, Safetensors) {
  replay_corpus("io/corpus/safetensors", as_bytes(read_safetensors));
}
TEST(Corpus, Pickle) {
  replay_corpus("io/corpus/pickle", as_bytes(read_pickle));
}
TEST(Corpus, TorchFile) {
  replay_corpus("io/corpus/torch_file", as_bytes(read_torch_file));
}
TEST(Corpus, Config) {
  replay_corpus("io/corpus/config", read_config);
}

}  // namespace
}  // namespace magi
