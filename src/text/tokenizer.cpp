// SPDX-License-Identifier: Apache-2.0
#include "text/tokenizer.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "core/error.h"
#include "io/json_file.h"
#include "io/tensor_store.h"
#include "text/added_tokens.h"
#include "text/bpe.h"
#include "text/regex.h"

namespace magi {
namespace {

using nlohmann::json;

/// GPT-2's pattern: what a ByteLevel pre-tokenizer splits by when it is told to.
constexpr const char* kByteLevelPattern =
    R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";

/// Characters that stand alone before the file's own split. The last range is an accident of the released
/// pipeline, which wrote CJK extension characters in a way that its regular expressions read as '0'…'U'; the
/// model was served so.
bool stands_alone(char32_t c) {
  struct Range {
    char32_t first, last;
  };
  static constexpr Range ranges[] = {{0x1100, 0x11FF}, {0x2E80, 0xA4CF}, {0xA840, 0xD7AF}, {0xF900, 0xFAFF},
                                     {0xFE30, 0xFE4F}, {0xFF65, 0xFFDC}, {'0', 'U'}};
  return std::any_of(std::begin(ranges), std::end(ranges),
                     [c](Range r) { return c >= r.first && c <= r.last; });
}

std::vector<std::pair<std::size_t, std::size_t>> isolate_cjk(std::string_view text) {
  std::vector<std::pair<std::size_t, std::size_t>> pieces;
  std::size_t done = 0;
  for (std::size_t at = 0, length = 0; at < text.size(); at += length) {
    if (!stands_alone(code_point_at(text, at, length))) continue;
    if (done < at) pieces.emplace_back(done, at);
    pieces.emplace_back(at, at + length);
    done = at + length;
  }
  if (done < text.size()) pieces.emplace_back(done, text.size());
  return pieces;
}

std::string type_of(const json& part) {
  return part.is_object() ? part.value("type", json("?")).dump() : part.dump();
}

bool flag(const json& object, const char* name) {
  return object.value(name, json(false)) == true;
}

/// Whether the normaliser is NFC (else there is none).
bool read_normalizer(const json& normalizer) {
  if (normalizer.is_null()) return false;
  if (type_of(normalizer) == "\"Sequence\"" && normalizer.contains("normalizers")) {
    const json& parts = normalizer["normalizers"];
    require(parts.is_array() && parts.size() <= 1,
            "`normalizer` is a sequence of several steps; NFC alone is supported");
    return !parts.empty() && read_normalizer(parts[0]);
  }
  require(type_of(normalizer) == "\"NFC\"", "`normalizer` is of type {}; NFC alone is supported",
          type_of(normalizer));
  return true;
}

void read_pre_tokenizer(const json& part, std::vector<Regex>& splits) {
  if (part.is_null()) return;
  const std::string type = type_of(part);
  if (type == "\"Sequence\"" && part.contains("pretokenizers") && part["pretokenizers"].is_array()) {
    for (const json& step : part["pretokenizers"]) {
      require(type_of(step) != "\"Sequence\"", "`pre_tokenizer` has a sequence inside a sequence");
      read_pre_tokenizer(step, splits);
    }
  } else if (type == "\"Split\"") {
    require(part.value("behavior", json()) == "Isolated",
            "`pre_tokenizer` splits with behavior {}; only Isolated is supported",
            part.value("behavior", json()).dump());
    const json pattern = part.value("pattern", json());
    require(pattern.is_object() && pattern.contains("Regex") && pattern["Regex"].is_string(),
            "`pre_tokenizer` splits by something other than a Regex");
    splits.emplace_back(pattern["Regex"].get<std::string>());
  } else if (type == "\"ByteLevel\"") {
    require(!flag(part, "add_prefix_space"), "`pre_tokenizer.add_prefix_space` is not supported");
    if (part.value("use_regex", json(true)) == true) splits.emplace_back(kByteLevelPattern);
  } else {
    fail("`pre_tokenizer` is of type {}; Split, ByteLevel and sequences of them are supported", type);
  }
}

std::vector<AddedToken> read_added_tokens(const json& list) {
  std::vector<AddedToken> tokens;
  if (list.is_null()) return tokens;
  require(list.is_array(), "`added_tokens` is not a list");
  for (const json& t : list) {
    require(t.is_object() && t.contains("content") && t["content"].is_string() && t.contains("id") &&
                t["id"].is_number_unsigned() && t["id"] <= std::int64_t{0x7FFFFFFF},
            "`added_tokens` has an entry without content and id: {}", t.dump());
    tokens.push_back({t["content"], t["id"], flag(t, "single_word"), flag(t, "lstrip"), flag(t, "rstrip"),
                      flag(t, "normalized")});
  }
  return tokens;
}

}  // namespace

struct Tokenizer::Parts {
  Bpe bpe;
  bool nfc = false;
  std::vector<Regex> splits;
  AddedTokens raw_tokens;         // looked for in the raw text
  AddedTokens normalized_tokens;  // … and in the normalised text

  static std::shared_ptr<const Parts> from(const json& file, const std::string& name);
  AlignedText normalize(AlignedText text) const { return nfc ? normalize_nfc(text) : std::move(text); }
};

std::shared_ptr<const Tokenizer::Parts> Tokenizer::Parts::from(const json& file,
                                                               const std::string& name) try {
  require(file.is_object() && file.contains("model"), "it has no `model`");
  const bool nfc = read_normalizer(file.value("normalizer", json()));
  std::vector<Regex> splits;
  read_pre_tokenizer(file.value("pre_tokenizer", json()), splits);

  std::vector<AddedToken> raw, normalized;
  for (AddedToken& token : read_added_tokens(file.value("added_tokens", json()))) {
    if (token.normalized && nfc) token.content = normalize_nfc(align(token.content)).bytes;
    (token.normalized ? normalized : raw).push_back(std::move(token));
  }
  return std::make_shared<const Parts>(Parts{Bpe(file["model"]), nfc, std::move(splits),
                                             AddedTokens(std::move(raw)),
                                             AddedTokens(std::move(normalized))});
} catch (const std::exception& e) {
  fail("{}: {}", name, printable(e.what()));
}

namespace {

/// One call of encode: collects tokens and remembers words it has met.
class Encoder {
 public:
  Encoder(const Bpe& bpe, const std::vector<Regex>& splits, bool cjk_split)
      : bpe_(bpe), splits_(splits), cjk_split_(cjk_split) {}

  void add(std::int32_t id, TokenSpan span) {
    tokens_.ids.push_back(id);
    tokens_.offsets.push_back(span);
  }

  void add_text(const AlignedText& text) {
    std::vector<std::pair<std::size_t, std::size_t>> pieces{{0, text.bytes.size()}};
    if (cjk_split_) pieces = isolate_cjk(text.bytes);
    for (const auto& [first, end] : pieces) add_piece(text, first, end, 0);
  }

  bool full() const { return tokens_.ids.size() > Tokenizer::kMaxTokens; }

  Tokens finish() {
    tokens_.truncated = full();
    if (tokens_.truncated) {
      tokens_.ids.resize(Tokenizer::kMaxTokens);
      tokens_.offsets.resize(Tokenizer::kMaxTokens);
    }
    return std::move(tokens_);
  }

 private:
  /// Each split sees its piece alone; what comes out of the last one is a word.
  void add_piece(const AlignedText& text, std::size_t first, std::size_t end, std::size_t split) {
    if (full()) return;
    if (split == splits_.size()) return add_word(text, first, end);
    const std::string_view piece = std::string_view(text.bytes).substr(first, end - first);
    for (const auto& [a, b] : splits_[split].isolate(piece)) add_piece(text, first + a, first + b, split + 1);
  }

  void add_word(const AlignedText& text, std::size_t first, std::size_t end) {
    const std::string word = text.bytes.substr(first, end - first);
    auto [entry, is_new] = words_.try_emplace(word);
    if (is_new) bpe_.encode(word, entry->second);
    for (const Piece& piece : entry->second) {
      add(piece.id, text.span(first, first + piece.bytes));
      first += piece.bytes;
    }
  }

  const Bpe& bpe_;
  const std::vector<Regex>& splits_;
  bool cjk_split_;
  Tokens tokens_;
  std::unordered_map<std::string, std::vector<Piece>> words_;
};

}  // namespace

Tokenizer Tokenizer::load(const std::filesystem::path& file) {
  return Tokenizer(Parts::from(read_json(file), file.string()));
}

Tokenizer Tokenizer::parse(std::string_view text, const std::string& name) {
  return Tokenizer(Parts::from(parse_json(text, name), name));
}

Tokens Tokenizer::encode(std::string_view text, bool cjk_split) const {
  require(text.size() <= kMaxTextBytes, "the prompt has {} bytes, more than the {} allowed; shorten it",
          text.size(), kMaxTextBytes);
  Encoder encoder(parts_->bpe, parts_->splits, cjk_split);
  const AlignedText raw = align(text);
  for (const TextPart& part : parts_->raw_tokens.split(raw.bytes)) {
    if (encoder.full()) break;
    if (part.id >= 0) {
      encoder.add(part.id, raw.span(part.first, part.end));
      continue;
    }
    const AlignedText normal = parts_->normalize(raw.slice(part.first, part.end));
    for (const TextPart& p : parts_->normalized_tokens.split(normal.bytes)) {
      if (p.id >= 0)
        encoder.add(p.id, normal.span(p.first, p.end));
      else
        encoder.add_text(normal.slice(p.first, p.end));
    }
  }
  return encoder.finish();
}

}  // namespace magi
