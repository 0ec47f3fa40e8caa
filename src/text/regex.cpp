// SPDX-License-Identifier: Apache-2.0
#include "text/regex.h"

#include <oniguruma.h>

#include "core/error.h"

namespace magi {
namespace {

/// Steps after which a search gives up: far beyond what an honest pattern needs, seconds for one that
/// explodes.
constexpr unsigned long kSearchSteps = 20'000'000;

std::string message_of(int code, OnigErrorInfo* info = nullptr) {
  UChar buffer[ONIG_MAX_ERROR_MESSAGE_LEN];
  const int n = info ? onig_error_code_to_str(buffer, code, info) : onig_error_code_to_str(buffer, code);
  return {reinterpret_cast<const char*>(buffer), static_cast<std::size_t>(n)};
}

std::size_t next_character(std::string_view text, std::size_t at) {
  do ++at;
  while (at < text.size() && (static_cast<unsigned char>(text[at]) & 0xC0) == 0x80);
  return at;
}

void initialize_once() {
  static const int code = [] {
    OnigEncoding utf8 = ONIG_ENCODING_UTF8;
    return onig_initialize(&utf8, 1);
  }();
  require(code == ONIG_NORMAL, "Oniguruma does not start: {}", message_of(code));
}

}  // namespace

Regex::Regex(const std::string& pattern) {
  initialize_once();
  regex_t* compiled = nullptr;
  OnigErrorInfo info{};
  const auto* begin = reinterpret_cast<const UChar*>(pattern.data());
  const int code = onig_new(&compiled, begin, begin + pattern.size(), ONIG_OPTION_NONE, ONIG_ENCODING_UTF8,
                            ONIG_SYNTAX_RUBY, &info);
  require(code == ONIG_NORMAL, "regular expression does not compile: {}", message_of(code, &info));
  regex_ = std::shared_ptr<void>(compiled, [](void* p) { onig_free(static_cast<regex_t*>(p)); });
}

std::vector<std::pair<std::size_t, std::size_t>> Regex::isolate(std::string_view text) const {
  const std::unique_ptr<OnigRegion, void (*)(OnigRegion*)> region(
      onig_region_new(), [](OnigRegion* r) { onig_region_free(r, 1); });
  const std::unique_ptr<OnigMatchParam, void (*)(OnigMatchParam*)> limits(onig_new_match_param(),
                                                                          onig_free_match_param);
  onig_initialize_match_param(limits.get());
  onig_set_retry_limit_in_search_of_match_param(limits.get(), kSearchSteps);
  const auto* begin = reinterpret_cast<const UChar*>(text.data());
  const auto* end = begin + text.size();

  std::vector<std::pair<std::size_t, std::size_t>> pieces;
  const auto add = [&](std::size_t first, std::size_t last) {
    if (first < last) pieces.emplace_back(first, last);
  };
  std::size_t done = 0;  // everything before is in pieces
  std::size_t from = 0;  // where to search next
  while (from < text.size()) {
    const auto at = onig_search_with_param(static_cast<regex_t*>(regex_.get()), begin, end, begin + from, end,
                                           region.get(), ONIG_OPTION_NONE, limits.get());
    if (at == ONIG_MISMATCH) break;
    require(at >= 0, "text does not go through the tokenizer's regular expression: {}",
            message_of(static_cast<int>(at)));
    const auto first = static_cast<std::size_t>(region->beg[0]);
    const auto last = static_cast<std::size_t>(region->end[0]);
    add(done, first);
    add(first, last);
    done = last;
    // An empty match moves on by one character.
    from = last > first ? last : next_character(text, last);
  }
  add(done, text.size());
  return pieces;
}

}  // namespace magi
