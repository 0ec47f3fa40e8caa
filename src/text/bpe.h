// SPDX-License-Identifier: Apache-2.0
// Byte-level byte-pair encoding: the vocabulary and merges of a tokenizer.json's `model`.
#pragma once

#include <array>
#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

namespace magi {

/// A token and the bytes it covers.
struct Piece {
  std::int32_t id = 0;
  std::uint32_t bytes = 0;
};

class Bpe {
 public:
  /// `model`: "vocab" (token → id, tokens spelled in the byte-level alphabet) and "merges" ("a b" or
  /// ["a","b"], by falling priority). Throws Error for anything that would change ids and is not done here.
  explicit Bpe(const nlohmann::json& model);

  /// Tokens of one word (any bytes), appended to `out`; O(n log n). Throws Error for a byte without a token.
  void encode(std::string_view word, std::vector<Piece>& out) const;

  /// Id of a token spelled in the byte-level alphabet, −1 if there is none.
  std::int32_t id_of(const std::string& spelling) const;

 private:
  struct Merge {
    std::int32_t rank;
    std::int32_t id;
  };
  static std::uint64_t key(std::int32_t left, std::int32_t right) {
    return static_cast<std::uint64_t>(static_cast<std::uint32_t>(left)) << 32 |
           static_cast<std::uint32_t>(right);
  }
  void read_vocabulary(const nlohmann::json& vocabulary);
  void read_merges(const nlohmann::json& merges);

  std::unordered_map<std::string, std::int32_t> ids_;  // by spelling
  std::unordered_map<std::uint64_t, Merge> merges_;    // by key(left, right)
  std::array<std::int32_t, 256> byte_ids_{};           // −1: no token
  bool whole_words_first_ = false;                     // `ignore_merges`
};

}  // namespace magi
