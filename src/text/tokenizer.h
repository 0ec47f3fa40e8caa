// SPDX-License-Identifier: Apache-2.0
// The text encoder's tokenizer: byte-level BPE from a Hugging Face tokenizer.json, with the CJK split that
// the released pipeline puts before the file's own pre-tokenizer (model.md section 6).
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "text/unicode.h"

namespace magi {

struct Tokens {
  std::vector<std::int32_t> ids;
  std::vector<TokenSpan> offsets;  ///< code points of the raw text; a token covers every character it touches
  bool truncated = false;          ///< the text had more tokens than kMaxTokens
};

class Tokenizer {
 public:
  /// Longer texts keep their first tokens, as the released pipeline does; callers should warn.
  static constexpr std::size_t kMaxTokens = 7000;
  /// Longer texts are refused: no 7000 tokens need as much.
  static constexpr std::size_t kMaxTextBytes = 1 << 20;

  /// Reads tokenizer.json. Throws Error naming the file.
  static Tokenizer load(const std::filesystem::path& file);
  /// From the file's content; `name` stands for it in messages.
  static Tokenizer parse(std::string_view json, const std::string& name);

  /// No special tokens are added; "" gives no tokens. Safe to call from several threads. Throws Error for
  /// invalid UTF-8.
  Tokens encode(std::string_view text, bool cjk_split = true) const;

 private:
  struct Parts;
  explicit Tokenizer(std::shared_ptr<const Parts> parts) : parts_(std::move(parts)) {}

  std::shared_ptr<const Parts> parts_;
};

}  // namespace magi
