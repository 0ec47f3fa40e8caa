// SPDX-License-Identifier: Apache-2.0
// Added tokens: literal strings that become one token each before anything else looks at the text.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace magi {

struct AddedToken {
  std::string content;
  std::int32_t id = 0;
  bool single_word = false;  ///< only where no word character touches it
  bool lstrip = false;       ///< swallows white space before it
  bool rstrip = false;       ///< … and after it
  bool normalized = false;   ///< looked for in the normalised text, not in the raw one
};

/// Byte range [first, end) of a text: an added token, or with id −1 what lies between.
struct TextPart {
  std::int32_t id = -1;
  std::size_t first = 0;
  std::size_t end = 0;
};

/// Finds the leftmost longest tokens, without overlaps.
class AddedTokens {
 public:
  explicit AddedTokens(std::vector<AddedToken> tokens);

  /// Cuts valid UTF-8 into tokens and non-empty texts, in order.
  std::vector<TextPart> split(std::string_view text) const;

 private:
  const AddedToken* longest_at(std::string_view text, std::size_t at) const;

  std::vector<AddedToken> tokens_;                   // by falling length
  std::vector<std::vector<std::size_t>> by_byte_{};  // [256] indices of the tokens that start with a byte
};

}  // namespace magi
