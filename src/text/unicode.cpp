// SPDX-License-Identifier: Apache-2.0
#include "text/unicode.h"

#include <utf8proc.h>

#include <algorithm>
#include <array>
#include <optional>

#include "core/error.h"

namespace magi {
namespace {

/// A character on its way through NFC. `change` tells how it replaces source characters: 0 replaces one, +1
/// is new, −n replaces one and swallows the n that follow.
struct Moving {
  char32_t code_point;
  std::int64_t change;
};

int combining_class(char32_t c) {
  return utf8proc_get_property(static_cast<utf8proc_int32_t>(c))->combining_class;
}

std::optional<char32_t> compose(char32_t a, char32_t b) {
  std::array<utf8proc_int32_t, 2> pair{static_cast<utf8proc_int32_t>(a), static_cast<utf8proc_int32_t>(b)};
  const auto options = static_cast<utf8proc_option_t>(UTF8PROC_STABLE | UTF8PROC_COMPOSE);
  if (utf8proc_normalize_utf32(pair.data(), 2, options) != 1) return std::nullopt;
  return static_cast<char32_t>(pair[0]);
}

/// Canonical decomposition with marks in canonical order.
std::vector<Moving> decompose(const AlignedText& text) {
  std::vector<Moving> out;
  std::size_t run = 0;  // start of the current run of marks
  const auto sort_marks = [&] {
    std::stable_sort(out.begin() + static_cast<std::ptrdiff_t>(run), out.end(),
                     [](const Moving& a, const Moving& b) {
                       return combining_class(a.code_point) < combining_class(b.code_point);
                     });
  };
  for (std::size_t at = 0, length = 0; at < text.bytes.size(); at += length) {
    const char32_t c = code_point_at(text.bytes, at, length);
    std::array<utf8proc_int32_t, 16> parts{};
    int last_class = 0;
    const auto count = utf8proc_decompose_char(static_cast<utf8proc_int32_t>(c), parts.data(), parts.size(),
                                               UTF8PROC_DECOMPOSE, &last_class);
    require(count > 0 && count <= static_cast<utf8proc_ssize_t>(parts.size()), "cannot decompose U+{:04X}",
            static_cast<std::uint32_t>(c));
    for (utf8proc_ssize_t i = 0; i < count; ++i) {
      const auto part = static_cast<char32_t>(parts[static_cast<std::size_t>(i)]);
      if (combining_class(part) == 0) {
        sort_marks();
        run = out.size() + 1;
      }
      out.push_back({part, i == 0 ? 0 : 1});
    }
  }
  sort_marks();
  return out;
}

/// Canonical composition: a mark joins the last starter unless a mark of the same or a higher class lies
/// between.
std::vector<Moving> recompose(const std::vector<Moving>& in) {
  std::vector<Moving> out;
  std::optional<std::size_t> starter;
  int blocking = -1;  // class of the last character kept after the starter, −1 if none
  for (const Moving& m : in) {
    const int cls = combining_class(m.code_point);
    if (starter && (blocking < 0 || blocking < cls)) {
      Moving& s = out[*starter];
      if (const auto joined = compose(s.code_point, m.code_point)) {
        s = {*joined, s.change + m.change - 1};
        continue;
      }
    }
    if (cls == 0) {
      starter = out.size();
      blocking = -1;
    } else if (starter) {
      blocking = cls;
    }
    out.push_back(m);
  }
  return out;
}

}  // namespace

void append_utf8(std::string& out, char32_t code_point) {
  std::array<utf8proc_uint8_t, 4> buffer{};
  const auto n = utf8proc_encode_char(static_cast<utf8proc_int32_t>(code_point), buffer.data());
  out.append(buffer.begin(), buffer.begin() + n);
}

void AlignedText::append(char32_t code_point, TokenSpan span) {
  append_utf8(bytes, code_point);
  raw.resize(bytes.size(), span);
}

AlignedText AlignedText::slice(std::size_t first, std::size_t end) const {
  const auto begin = raw.begin();
  return {bytes.substr(first, end - first),
          {begin + static_cast<std::ptrdiff_t>(first), begin + static_cast<std::ptrdiff_t>(end)}};
}

std::vector<char32_t> decode_utf8(std::string_view text, std::string_view what) {
  std::vector<char32_t> out;
  out.reserve(text.size());
  for (std::size_t at = 0; at < text.size();) {
    utf8proc_int32_t c = 0;
    const auto n = utf8proc_iterate(reinterpret_cast<const utf8proc_uint8_t*>(text.data()) + at,
                                    static_cast<utf8proc_ssize_t>(text.size() - at), &c);
    require(n > 0, "{} is not valid UTF-8 at byte {}; save it as UTF-8", what, at);
    out.push_back(static_cast<char32_t>(c));
    at += static_cast<std::size_t>(n);
  }
  return out;
}

std::int64_t count_code_points(std::string_view text) {
  return std::count_if(text.begin(), text.end(),
                       [](char c) { return (static_cast<unsigned char>(c) & 0xC0) != 0x80; });
}

char32_t code_point_at(std::string_view text, std::size_t at, std::size_t& length) {
  utf8proc_int32_t c = 0;
  const auto n = utf8proc_iterate(reinterpret_cast<const utf8proc_uint8_t*>(text.data()) + at,
                                  static_cast<utf8proc_ssize_t>(text.size() - at), &c);
  require(n > 0, "text is not valid UTF-8 at byte {}", at);
  length = static_cast<std::size_t>(n);
  return static_cast<char32_t>(c);
}

AlignedText align(std::string_view text) {
  AlignedText out;
  out.bytes.reserve(text.size());
  out.raw.reserve(text.size());
  std::int64_t i = 0;
  for (const char32_t c : decode_utf8(text, "the prompt")) {
    out.append(c, {i, i + 1});
    ++i;
  }
  return out;
}

AlignedText normalize_nfc(const AlignedText& text) {
  // Nothing below U+0300 (first byte 0xCC) composes, decomposes or moves.
  const auto plain = [](char c) { return static_cast<unsigned char>(c) < 0xCC; };
  if (std::all_of(text.bytes.begin(), text.bytes.end(), plain)) return text;

  std::vector<TokenSpan> source;  // one a character
  for (std::size_t at = 0, length = 0; at < text.bytes.size(); at += length) {
    code_point_at(text.bytes, at, length);
    source.push_back(text.raw[at]);
  }
  AlignedText out;
  std::size_t next = 0;  // the source character that the next replacing one stands for
  for (const Moving& m : recompose(decompose(text))) {
    const std::size_t from = m.change > 0 && next > 0 ? next - 1 : next;
    out.append(m.code_point, source[std::min(from, source.size() - 1)]);
    if (m.change <= 0) next += 1 + static_cast<std::size_t>(-m.change);
  }
  return out;
}

bool is_space(char32_t c) {
  if (c < 0x80) return c == ' ' || (c >= 0x09 && c <= 0x0D) || (c >= 0x1C && c <= 0x1F);
  if (c == 0x85) return true;
  const auto category = utf8proc_category(static_cast<utf8proc_int32_t>(c));
  return category == UTF8PROC_CATEGORY_ZS || category == UTF8PROC_CATEGORY_ZL ||
         category == UTF8PROC_CATEGORY_ZP;
}

bool is_word(char32_t c) {
  switch (utf8proc_category(static_cast<utf8proc_int32_t>(c))) {
    case UTF8PROC_CATEGORY_LU:
    case UTF8PROC_CATEGORY_LL:
    case UTF8PROC_CATEGORY_LT:
    case UTF8PROC_CATEGORY_LM:
    case UTF8PROC_CATEGORY_LO:
    case UTF8PROC_CATEGORY_MN:
    case UTF8PROC_CATEGORY_MC:
    case UTF8PROC_CATEGORY_ME:
    case UTF8PROC_CATEGORY_ND:
    case UTF8PROC_CATEGORY_NL:
    case UTF8PROC_CATEGORY_PC:
      return true;
    default:
      return false;
  }
}

bool is_printable(char32_t c) {
  switch (utf8proc_category(static_cast<utf8proc_int32_t>(c))) {
    case UTF8PROC_CATEGORY_CC:
    case UTF8PROC_CATEGORY_CF:
    case UTF8PROC_CATEGORY_CS:
    case UTF8PROC_CATEGORY_CO:
    case UTF8PROC_CATEGORY_CN:
    case UTF8PROC_CATEGORY_ZL:
    case UTF8PROC_CATEGORY_ZP:
      return false;
    case UTF8PROC_CATEGORY_ZS:
      return c == ' ';
    default:
      return true;
  }
}

}  // namespace magi
