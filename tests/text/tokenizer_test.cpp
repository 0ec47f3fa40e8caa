// SPDX-License-Identifier: Apache-2.0
#include "text/tokenizer.h"

#include <gtest/gtest.h>

#include <chrono>
#include <nlohmann/json.hpp>

#include "core/error.h"
#include "support/expect_error.h"

namespace magi {
namespace {

using nlohmann::json;
using Ids = std::vector<std::int32_t>;
using Spans = std::vector<TokenSpan>;

/// Ids 0…255 are the bytes; then the merges given.
json byte_tokenizer(const std::vector<std::pair<std::string, std::string>>& merges = {}) {
  json vocab = json::object(), list = json::array();
  std::int32_t next_letter = 0x100;
  for (int b = 0; b < 256; ++b) {
    const bool itself = (b >= 0x21 && b <= 0x7E) || (b >= 0xA1 && b <= 0xAC) || b >= 0xAE;
    std::string letter;
    append_utf8(letter, static_cast<char32_t>(itself ? b : next_letter++));
    vocab[letter] = b;
  }
  for (const auto& [a, b] : merges) {
    vocab[a + b] = vocab.size();
    list.push_back({a, b});
  }
  const json split = {{"type", "Split"},
                      {"pattern", {{"Regex", " ?\\p{L}+|\\s+(?!\\S)|\\s+|[^\\s\\p{L}]+"}}},
                      {"behavior", "Isolated"},
                      {"invert", false}};
  const json bytes = {{"type", "ByteLevel"}, {"add_prefix_space", false}, {"use_regex", false}};
  return {{"added_tokens", json::array()},
          {"normalizer", {{"type", "NFC"}}},
          {"pre_tokenizer", {{"type", "Sequence"}, {"pretokenizers", {split, bytes}}}},
          {"model", {{"type", "BPE"}, {"vocab", vocab}, {"merges", list}}}};
}

Tokenizer make(const json& file) {
  return Tokenizer::parse(file.dump(), "tokenizer.json");
}

json added(const std::string& content, int id, const json& flags = json::object()) {
  json token = {{"id", id}, {"content", content}};
  token.update(flags);
  return token;
}

TEST(Tokenizer, MergesByPriorityThenFromTheLeft) {
  const Tokenizer t = make(byte_tokenizer({{"b", "c"}, {"a", "b"}, {"a", "a"}, {"aa", "a"}}));
  EXPECT_EQ(t.encode("abc").ids, (Ids{'a', 256}));
  EXPECT_EQ(t.encode("aaaa").ids, (Ids{258, 258}));
  EXPECT_EQ(t.encode("aaa").ids, (Ids{259}));
}

TEST(Tokenizer, MergesMayBeStrings) {
  json file = byte_tokenizer({{"a", "b"}});
  file["model"]["merges"] = {"a b"};
  EXPECT_EQ(make(file).encode("ab").ids, (Ids{256}));
}

TEST(Tokenizer, TokensCoverTheCharactersTheyTouch) {
  const Tokens t = make(byte_tokenizer()).encode("a\xC3\xA9z");
  EXPECT_EQ(t.ids, (Ids{'a', 0xC3, 0xA9, 'z'}));
  EXPECT_EQ(t.offsets, (Spans{{0, 1}, {1, 2}, {1, 2}, {2, 3}}));
}

TEST(Tokenizer, ComposedCharacterStandsForTheFirstOfItsParts) {
  const Tokens t = make(byte_tokenizer()).encode("e\xCC\x81z");  // e + combining acute
  EXPECT_EQ(t.ids, (Ids{0xC3, 0xA9, 'z'}));
  EXPECT_EQ(t.offsets, (Spans{{0, 1}, {0, 1}, {2, 3}}));
}

TEST(Tokenizer, DecomposedPartsStandForTheirCharacter) {
  const Tokens t = make(byte_tokenizer()).encode("\u0958z");  // never recomposed: U+0915 U+093C
  EXPECT_EQ(t.ids, (Ids{0xE0, 0xA4, 0x95, 0xE0, 0xA4, 0xBC, 'z'}));
  EXPECT_EQ(t.offsets, (Spans{{0, 1}, {0, 1}, {0, 1}, {0, 1}, {0, 1}, {0, 1}, {1, 2}}));
}

TEST(Tokenizer, HangulComposes) {
  const Tokens t = make(byte_tokenizer()).encode("\u1112\u1161\u11ABz");
  EXPECT_EQ(t.ids, (Ids{0xED, 0x95, 0x9C, 'z'}));
  EXPECT_EQ(t.offsets.back(), (TokenSpan{3, 4}));
}

TEST(Tokenizer, CjkSplitSeparatesCharactersAndTheAccidentalAsciiRange) {
  const Tokenizer t = make(byte_tokenizer({{"A", "b"}, {"b", "A"}, {"b", "b"}}));
  EXPECT_EQ(t.encode("bA", false).ids, (Ids{257}));
  EXPECT_EQ(t.encode("bA").ids, (Ids{'b', 'A'}));
  EXPECT_EQ(t.encode("bb").ids, (Ids{258}));
}

TEST(Tokenizer, LookaheadSeesTheEndOfItsPiece) {
  // "  字": without the split the lookahead leaves the last space out of the first piece.
  const Tokenizer t = make(byte_tokenizer({{"\u0120", "\u0120"}}));
  EXPECT_EQ(t.encode("  \u5B57", false).ids.front(), ' ');
  EXPECT_EQ(t.encode("  \u5B57", true).ids.front(), 256);
}

TEST(Tokenizer, AddedTokensComeFirstLongestFirst) {
  json file = byte_tokenizer();
  file["added_tokens"] = {added("<a>", 300), added("<a>b", 301), added("x", 302, {{"single_word", true}})};
  const Tokenizer t = make(file);
  const Tokens tokens = t.encode("\u00E9<a>b<a>");
  EXPECT_EQ(tokens.ids, (Ids{0xC3, 0xA9, 301, 300}));
  EXPECT_EQ(tokens.offsets, (Spans{{0, 1}, {0, 1}, {1, 5}, {5, 8}}));
  EXPECT_EQ(t.encode("xx x").ids, (Ids{'x', 'x', ' ', 302}));
}

TEST(Tokenizer, AddedTokensStripSpaces) {
  json file = byte_tokenizer();
  file["added_tokens"] = {added("<l>", 300, {{"lstrip", true}}), added("<r>", 301, {{"rstrip", true}})};
  const Tokens tokens = make(file).encode("a  <l> <r>  b");
  EXPECT_EQ(tokens.ids, (Ids{'a', 300, ' ', 301, 'b'}));
  EXPECT_EQ(tokens.offsets, (Spans{{0, 1}, {1, 6}, {6, 7}, {7, 12}, {12, 13}}));
}

TEST(Tokenizer, NormalizedAddedTokensAreFoundAfterNfc) {
  json file = byte_tokenizer();
  file["added_tokens"] = {added("e\u0301", 300, {{"normalized", true}}), added("o\u0301", 301)};
  const Tokenizer t = make(file);
  EXPECT_EQ(t.encode("e\u0301").ids, (Ids{300}));
  EXPECT_EQ(t.encode("\u00E9").ids, (Ids{300}));
  EXPECT_EQ(t.encode("o\u0301").ids, (Ids{301}));
  EXPECT_EQ(t.encode("\u00F3").ids, (Ids{0xC3, 0xB3}));
}

TEST(Tokenizer, LongTextsKeepTheFirstTokens) {
  const Tokenizer t = make(byte_tokenizer());
  const Tokens tokens = t.encode(std::string(Tokenizer::kMaxTokens + 1, 'a'));
  EXPECT_TRUE(tokens.truncated);
  EXPECT_EQ(tokens.ids.size(), Tokenizer::kMaxTokens);
  EXPECT_FALSE(t.encode(std::string(Tokenizer::kMaxTokens, 'a')).truncated);
  expect_error([&] { (void)t.encode(std::string(Tokenizer::kMaxTextBytes + 1, 'a')); }, "shorten");
}

TEST(Tokenizer, OneHugeWordIsQuick) {
  std::vector<std::pair<std::string, std::string>> merges;
  for (std::string s = "a"; s.size() < 64; s += s) merges.emplace_back(s, s);
  const Tokenizer t = make(byte_tokenizer(merges));
  const auto start = std::chrono::steady_clock::now();
  EXPECT_EQ(t.encode(std::string(100 * 1024, 'a')).ids.size(), 100u * 1024 / 64);
  // A quadratic merge takes minutes here; this one takes some 30 ms.
  EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(10));
}

TEST(Tokenizer, BadTextEndsInAnError) {
  const Tokenizer t = make(byte_tokenizer());
  expect_error([&] { (void)t.encode("ab\xFF"); }, "not valid UTF-8 at byte 2");
  expect_error([&] { (void)t.encode("\xED\xA0\x80"); }, "not valid UTF-8");  // a surrogate
  EXPECT_TRUE(t.encode("").ids.empty());
  json file = byte_tokenizer();
  file["model"]["vocab"].erase("z");
  expect_error([&] { (void)make(file).encode("zoo"); }, "0x7A");
}

TEST(Tokenizer, BadFilesEndInAnErrorThatNamesThem) {
  expect_error([&] { (void)Tokenizer::parse("{", "t.json"); }, "t.json");
  expect_error([&] { (void)Tokenizer::parse("[]", "t.json"); }, "model");
  expect_error([&] { (void)Tokenizer::load("/nowhere/tokenizer.json"); }, "/nowhere/tokenizer.json");
  const auto broken = [](const char* pointer, const json& value) {
    json file = byte_tokenizer({{"a", "b"}});
    file[json::json_pointer(pointer)] = value;
    return file;
  };
  expect_error([&] { (void)make(broken("/model/type", "WordPiece")); }, "BPE");
  expect_error([&] { (void)make(broken("/model/vocab/a", -1)); }, "31 bits");
  expect_error([&] { (void)make(broken("/model/vocab/a", "x")); }, "31 bits");
  expect_error([&] { (void)make(broken("/model/merges/0", "a b c")); }, "merges");
  expect_error(
      [&] {
        (void)make(broken("/model/merges/0", json{"a", "nowhere"}));
      },
      "outside the vocabulary");
  expect_error([&] { (void)make(broken("/model/dropout", 0.1)); }, "dropout");
  expect_error([&] { (void)make(broken("/normalizer", {{"type", "NFKC"}})); }, "NFKC");
  expect_error([&] { (void)make(broken("/pre_tokenizer/pretokenizers/0/behavior", "Removed")); }, "Removed");
  expect_error(
      [&] {
        (void)make(broken("/pre_tokenizer/pretokenizers/0/pattern", {{"Regex", "("}}));
      },
      "does not compile");
  expect_error([&] { (void)make(broken("/pre_tokenizer", {{"type", "Metaspace"}})); }, "Metaspace");
  expect_error([&] { (void)make(broken("/added_tokens", {{{"content", 3}}})); }, "added_tokens");
}

TEST(Tokenizer, ExplodingPatternGivesUp) {
  json file = byte_tokenizer();
  file["pre_tokenizer"]["pretokenizers"][0]["pattern"]["Regex"] = "(?:a|aa)+$(?<!a)";
  expect_error([&] { (void)make(file).encode(std::string(3000, 'a')); }, "regular expression");
}

}  // namespace
}  // namespace magi
