// SPDX-License-Identifier: Apache-2.0
// Replays the inputs that fuzzers found and some made by hand: each must be read or refused with an Error.
#include "support/corpus.h"

#include "fuzz/text_targets.h"

namespace magi {
namespace {

TEST(Corpus, TokenizerFile) {
  replay_corpus("text/corpus/tokenizer_file", read_tokenizer);
}
TEST(Corpus, TokenizerText) {
  replay_corpus("text/corpus/tokenizer_text", tokenize_text);
}
TEST(Corpus, Prompt) {
  replay_corpus("text/corpus/prompt", prepare_any_prompt);
}

}  // namespace
}  // namespace magi
