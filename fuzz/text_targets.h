// SPDX-License-Identifier: Apache-2.0
// What the fuzzers of the text floor do with their bytes, and the unit tests with the corpus. Each returns or
// throws Error.
#pragma once

#include <cstdlib>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

#include "text/captions.h"
#include "text/prompt.h"
#include "text/tokenizer.h"

namespace magi {

/// A tokenizer with every kind of added token, NFC and a real split, over the 256 bytes and a few merges.
inline const Tokenizer& small_tokenizer() {
  static const Tokenizer tokenizer = [] {
    using nlohmann::json;
    json vocab = json::object();
    char32_t next_letter = 0x100;
    for (char32_t b = 0; b < 256; ++b) {
      const bool itself = (b >= 0x21 && b <= 0x7E) || (b >= 0xA1 && b <= 0xAC) || b >= 0xAE;
      std::string letter;
      append_utf8(letter, itself ? b : next_letter++);
      vocab[letter] = static_cast<int>(b);
    }
    json merges = json::array();
    for (const char* pair : {"t h", "th e", "a a", "aa aa", "e r"}) {
      const std::string text = pair;
      vocab[text.substr(0, text.find(' ')) + text.substr(text.find(' ') + 1)] = vocab.size();
      merges.push_back(text);
    }
    const json added = json::parse(R"([
      {"id": 300, "content": "<a>"}, {"id": 301, "content": "<a>b"}, {"id": 302, "content": "xy", "single_word": true},
      {"id": 303, "content": "<l>", "lstrip": true}, {"id": 304, "content": "<r>", "rstrip": true},
      {"id": 305, "content": "\u00e9n", "normalized": true}])");
    const json pre_tokenizer = json::parse(R"({"type": "Split", "behavior": "Isolated", "pattern": {"Regex":
      "(?i:'s|'t)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+"}})");
    const json file = {{"added_tokens", added},
                       {"normalizer", {{"type", "NFC"}}},
                       {"pre_tokenizer", pre_tokenizer},
                       {"model", {{"type", "BPE"}, {"vocab", vocab}, {"merges", merges}}}};
    return Tokenizer::parse(file.dump(), "small tokenizer");
  }();
  return tokenizer;
}

/// Every token covers some of the text.
inline void encode_and_check(const Tokenizer& tokenizer, std::string_view text) {
  for (const bool cjk_split : {true, false}) {
    const Tokens tokens = tokenizer.encode(text, cjk_split);
    const std::int64_t length = count_code_points(text);
    if (tokens.ids.size() != tokens.offsets.size()) std::abort();
    for (const TokenSpan& s : tokens.offsets) {
      if (s.first < 0 || s.end > length) std::abort();
    }
    if (!text.empty() && tokens.ids.empty()) std::abort();
  }
}

inline void tokenize_text(std::string_view text) {
  encode_and_check(small_tokenizer(), text);
}

inline void read_tokenizer(std::string_view text) {
  const Tokenizer tokenizer = Tokenizer::parse(text, "fuzz.json");
  tokenizer.encode("The fox's den, <Figure 1>:\n  \u96EA\u304C e\u0301 1.25");
}

inline void prepare_any_prompt(std::string_view text) {
  for (const bool has_image : {false, true}) {
    const std::string prepared = prepare_prompt(text, has_image);
    figure_span(prepared, 1);
    tokenize_text(prepared);
  }
  if (const auto json = parse_prompt_json(text)) caption_markdown(*json);
}

}  // namespace magi
