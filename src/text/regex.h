// SPDX-License-Identifier: Apache-2.0
// A regular expression in Oniguruma's Ruby syntax on UTF-8: what tokenizer.json files are written for.
#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace magi {

class Regex {
 public:
  /// Throws Error when the pattern does not compile.
  explicit Regex(const std::string& pattern);

  /// Cuts `text` (valid UTF-8) into matches and what lies between them, in order; empty pieces are left out.
  /// The text is all there is: a lookahead sees its end as the end. Byte ranges [first, end). Throws Error
  /// when matching gives up.
  std::vector<std::pair<std::size_t, std::size_t>> isolate(std::string_view text) const;

 private:
  std::shared_ptr<void> regex_;
};

}  // namespace magi
