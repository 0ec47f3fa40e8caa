// SPDX-License-Identifier: Apache-2.0
#include "text/bpe.h"

#include <limits>
#include <nlohmann/json.hpp>
#include <queue>

#include "core/error.h"
#include "text/unicode.h"

namespace magi {
namespace {

/// The byte-level alphabet: printable Latin-1 bytes spell themselves, the other 68 are U+0100 onwards, in
/// order.
std::array<char32_t, 256> byte_alphabet() {
  std::array<char32_t, 256> letters{};
  char32_t next = 0x100;
  for (char32_t b = 0; b < 256; ++b) {
    const bool itself = (b >= 0x21 && b <= 0x7E) || (b >= 0xA1 && b <= 0xAC) || b >= 0xAE;
    letters[b] = itself ? b : next++;
  }
  return letters;
}

std::string letter(unsigned byte) {
  static const std::array<char32_t, 256> letters = byte_alphabet();
  std::string s;
  append_utf8(s, letters[byte]);
  return s;
}

/// A part of the word under merging; a doubly linked list over positions.
struct Symbol {
  std::int32_t id;
  std::int32_t previous, next;
  std::uint32_t bytes;  // 0: merged into the one before
};

struct Candidate {
  std::int32_t rank, left, id;
  bool operator>(const Candidate& o) const { return rank != o.rank ? rank > o.rank : left > o.left; }
};

}  // namespace

Bpe::Bpe(const nlohmann::json& model) {
  require(model.is_object() && model.value("type", nlohmann::json("BPE")) == "BPE",
          "`model` is not of type BPE, the only one supported");
  for (const char* option : {"continuing_subword_prefix", "end_of_word_suffix"}) {
    const auto value = model.value(option, nlohmann::json(""));
    require(value.is_null() || value == "", "`model.{}` is not supported", option);
  }
  require(model.value("dropout", nlohmann::json()).is_null(), "`model.dropout` is not supported");
  whole_words_first_ = model.value("ignore_merges", nlohmann::json(false)) == true;
  require(model.contains("vocab") && model["vocab"].is_object(), "`model.vocab` is missing");
  require(model.contains("merges") && model["merges"].is_array(), "`model.merges` is missing");
  read_vocabulary(model["vocab"]);
  read_merges(model["merges"]);
}

void Bpe::read_vocabulary(const nlohmann::json& vocabulary) {
  ids_.reserve(vocabulary.size());
  for (const auto& [spelling, id] : vocabulary.items()) {
    require(id.is_number_integer() && id >= 0 && id < std::numeric_limits<std::int32_t>::max(),
            "`model.vocab` gives {:?} the id {}, not a number of 31 bits", spelling, id.dump());
    ids_.emplace(spelling, id.get<std::int32_t>());
  }
  for (unsigned b = 0; b < 256; ++b) byte_ids_[b] = id_of(letter(b));
}

void Bpe::read_merges(const nlohmann::json& merges) {
  merges_.reserve(merges.size());
  std::int32_t rank = 0;
  for (const auto& merge : merges) {
    std::string left, right;
    if (merge.is_string()) {
      const auto& line = merge.get_ref<const std::string&>();
      const std::size_t space = line.find(' ');
      require(space != std::string::npos && line.find(' ', space + 1) == std::string::npos,
              "`model.merges` entry {} is not two tokens with one space between", rank);
      left = line.substr(0, space);
      right = line.substr(space + 1);
    } else {
      require(merge.is_array() && merge.size() == 2 && merge[0].is_string() && merge[1].is_string(),
              "`model.merges` entry {} is not a pair of tokens", rank);
      left = merge[0];
      right = merge[1];
    }
    const std::int32_t left_id = id_of(left), right_id = id_of(right), id = id_of(left + right);
    require(left_id >= 0 && right_id >= 0 && id >= 0,
            "`model.merges` entry {} ({:?}, {:?}) has a part or a result outside the vocabulary", rank, left,
            right);
    merges_.insert_or_assign(key(left_id, right_id), Merge{rank, id});
    ++rank;
  }
}

std::int32_t Bpe::id_of(const std::string& spelling) const {
  const auto found = ids_.find(spelling);
  return found == ids_.end() ? -1 : found->second;
}

void Bpe::encode(std::string_view word, std::vector<Piece>& out) const {
  require(word.size() < static_cast<std::size_t>(std::numeric_limits<std::int32_t>::max()),
          "word of {} bytes", word.size());
  if (whole_words_first_) {
    std::string spelling;
    for (const char c : word) spelling += letter(static_cast<unsigned char>(c));
    if (const std::int32_t id = id_of(spelling); id >= 0) {
      out.push_back({id, static_cast<std::uint32_t>(word.size())});
      return;
    }
  }

  std::vector<Symbol> symbols;
  symbols.reserve(word.size());
  for (const char c : word) {
    const std::int32_t id = byte_ids_[static_cast<unsigned char>(c)];
    require(id >= 0, "the vocabulary has no token for the byte 0x{:02X} of the text",
            static_cast<unsigned char>(c));
    const auto i = static_cast<std::int32_t>(symbols.size());
    symbols.push_back({id, i - 1, i + 1, 1});
  }
  if (symbols.empty()) return;
  symbols.back().next = -1;

  std::priority_queue<Candidate, std::vector<Candidate>, std::greater<>> queue;
  const auto consider = [&](std::int32_t left) {
    if (left < 0) return;
    const Symbol& s = symbols[static_cast<std::size_t>(left)];
    if (s.next < 0) return;
    const auto found = merges_.find(key(s.id, symbols[static_cast<std::size_t>(s.next)].id));
    if (found != merges_.end()) queue.push({found->second.rank, left, found->second.id});
  };
  for (std::int32_t i = 0; i + 1 < static_cast<std::int32_t>(symbols.size()); ++i) consider(i);

  while (!queue.empty()) {
    const Candidate best = queue.top();
    queue.pop();
    Symbol& left = symbols[static_cast<std::size_t>(best.left)];
    if (left.bytes == 0 || left.next < 0) continue;
    Symbol& right = symbols[static_cast<std::size_t>(left.next)];
    // The pair may have changed since it was queued.
    const auto found = merges_.find(key(left.id, right.id));
    if (found == merges_.end() || found->second.id != best.id) continue;
    left.id = best.id;
    left.bytes += right.bytes;
    left.next = right.next;
    right.bytes = 0;
    if (left.next >= 0) symbols[static_cast<std::size_t>(left.next)].previous = best.left;
    consider(left.previous);
    consider(best.left);
  }
  for (const Symbol& s : symbols) {
    if (s.bytes > 0) out.push_back({s.id, s.bytes});
  }
}

}  // namespace magi
