// SPDX-License-Identifier: Apache-2.0
#include "text/added_tokens.h"

#include <algorithm>

#include "text/unicode.h"

namespace magi {
namespace {

/// First byte of the character that ends before `at`.
std::size_t character_before(std::string_view text, std::size_t at) {
  do --at;
  while (at > 0 && (static_cast<unsigned char>(text[at]) & 0xC0) == 0x80);
  return at;
}

bool touches_word(std::string_view text, std::size_t first, std::size_t end) {
  std::size_t length = 0;
  if (first > 0 && is_word(code_point_at(text, character_before(text, first), length))) return true;
  return end < text.size() && is_word(code_point_at(text, end, length));
}

std::size_t skip_spaces_back(std::string_view text, std::size_t at, std::size_t limit) {
  std::size_t length = 0;
  while (at > limit) {
    const std::size_t before = character_before(text, at);
    if (!is_space(code_point_at(text, before, length))) break;
    at = before;
  }
  return at;
}

std::size_t skip_spaces(std::string_view text, std::size_t at) {
  std::size_t length = 0;
  while (at < text.size() && is_space(code_point_at(text, at, length))) at += length;
  return at;
}

}  // namespace

AddedTokens::AddedTokens(std::vector<AddedToken> tokens) : tokens_(std::move(tokens)), by_byte_(256) {
  std::erase_if(tokens_, [](const AddedToken& t) { return t.content.empty(); });
  std::stable_sort(tokens_.begin(), tokens_.end(),
                   [](const auto& a, const auto& b) { return a.content.size() > b.content.size(); });
  for (std::size_t i = 0; i < tokens_.size(); ++i)
    by_byte_[static_cast<unsigned char>(tokens_[i].content[0])].push_back(i);
}

const AddedToken* AddedTokens::longest_at(std::string_view text, std::size_t at) const {
  for (const std::size_t i : by_byte_[static_cast<unsigned char>(text[at])]) {
    if (text.substr(at).starts_with(tokens_[i].content)) return &tokens_[i];
  }
  return nullptr;
}

std::vector<TextPart> AddedTokens::split(std::string_view text) const {
  std::vector<TextPart> parts;
  std::size_t done = 0;  // everything before is in parts
  for (std::size_t at = 0; at < text.size();) {
    const AddedToken* token = longest_at(text, at);
    if (!token) {
      ++at;
      continue;
    }
    std::size_t first = at;
    std::size_t end = at + token->content.size();
    at = end;
    if (token->single_word && touches_word(text, first, end)) continue;
    if (token->lstrip) first = skip_spaces_back(text, first, done);
    if (token->rstrip) end = skip_spaces(text, end);
    first = std::max(first, done);
    if (done < first) parts.push_back({-1, done, first});
    parts.push_back({token->id, first, end});
    done = end;
    at = std::max(at, done);
  }
  if (done < text.size()) parts.push_back({-1, done, text.size()});
  return parts;
}

}  // namespace magi
