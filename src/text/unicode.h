// SPDX-License-Identifier: Apache-2.0
// UTF-8 text that remembers which raw code points each of its bytes came from, and NFC that keeps that
// memory.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace magi {

/// Half-open range of code points of the raw text.
struct TokenSpan {
  std::int64_t first = 0;
  std::int64_t end = 0;
  bool operator==(const TokenSpan&) const = default;
};

/// UTF-8 bytes and, for each byte, the raw code points that its character stands for.
struct AlignedText {
  std::string bytes;
  std::vector<TokenSpan> raw;  ///< one a byte

  void append(char32_t code_point, TokenSpan span);
  /// Bytes [first, end).
  AlignedText slice(std::size_t first, std::size_t end) const;
  /// Raw code points of bytes [first, end), which must not be empty: a byte stands for its whole character.
  TokenSpan span(std::size_t first, std::size_t end) const { return {raw[first].first, raw[end - 1].end}; }
};

/// Code points of `text`. Throws Error naming the byte where it stops being UTF-8; `what` names the text in
/// the message.
std::vector<char32_t> decode_utf8(std::string_view text, std::string_view what);
void append_utf8(std::string& out, char32_t code_point);
/// Number of code points of valid UTF-8.
std::int64_t count_code_points(std::string_view text);
/// The code point that starts at byte `at` of valid UTF-8 and its length in bytes.
char32_t code_point_at(std::string_view text, std::size_t at, std::size_t& length);

/// Code point i of the text stands for itself, [i, i+1).
AlignedText align(std::string_view text);

/// Unicode NFC. A character composed from several stands for the first of them only; characters that one was
/// decomposed into all stand for it. (This is how Hugging Face's tokenizers count, and figure tokens depend
/// on it.)
AlignedText normalize_nfc(const AlignedText& text);

/// White space as Python's str.isspace and str.split have it.
bool is_space(char32_t code_point);
/// Letters, marks, decimal digits and connectors: a regular expression's \w.
bool is_word(char32_t code_point);
/// Shown by Python's repr as it is, not as an escape.
bool is_printable(char32_t code_point);

}  // namespace magi
