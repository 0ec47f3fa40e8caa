// SPDX-License-Identifier: Apache-2.0
#include "text/json_text.h"

#include <array>
#include <charconv>
#include <cmath>

#include "core/error.h"
#include "text/unicode.h"

namespace magi {
namespace {

std::string float_text(double value) {
  if (std::isinf(value)) return value > 0 ? "inf" : "-inf";
  std::array<char, 40> buffer{};
  const auto end =
      std::to_chars(buffer.data(), buffer.data() + buffer.size(), value, std::chars_format::scientific).ptr;
  const std::string_view text(buffer.data(), static_cast<std::size_t>(end - buffer.data()));
  const int exponent = std::stoi(std::string(text.substr(text.find('e') + 1)));
  if (exponent < -4 || exponent >= 16) return std::string(text);
  const auto fixed =
      std::to_chars(buffer.data(), buffer.data() + buffer.size(), value, std::chars_format::fixed).ptr;
  std::string out(buffer.data(), fixed);
  return out.find('.') == std::string::npos ? out + ".0" : out;
}

/// Python's repr of a string: single quotes unless only they occur; what does not print is escaped.
std::string quote(std::string_view text) {
  const bool doubled = text.find('\'') != std::string_view::npos && text.find('"') == std::string_view::npos;
  const char mark = doubled ? '"' : '\'';
  std::string out(1, mark);
  for (std::size_t at = 0, length = 0; at < text.size(); at += length) {
    const char32_t c = code_point_at(text, at, length);
    if (c == static_cast<char32_t>(mark) || c == '\\') {
      out += '\\';
      out += static_cast<char>(c);
    } else if (c == '\n') {
      out += "\\n";
    } else if (c == '\r') {
      out += "\\r";
    } else if (c == '\t') {
      out += "\\t";
    } else if (is_printable(c)) {
      append_utf8(out, c);
    } else {
      const auto u = static_cast<std::uint32_t>(c);
      out += c < 0x100     ? fmt::format("\\x{:02x}", u)
             : c < 0x10000 ? fmt::format("\\u{:04x}", u)
                           : fmt::format("\\U{:08x}", u);
    }
  }
  return out + mark;
}

std::string repr(const PromptJson& value) {
  if (value.is_string()) return quote(value.get_ref<const std::string&>());
  if (value.is_array()) {
    std::string out;
    for (const auto& item : value) out += (out.empty() ? "" : ", ") + repr(item);
    return "[" + out + "]";
  }
  if (value.is_object()) {
    std::string out;
    for (const auto& [key, item] : value.items())
      out += (out.empty() ? "" : ", ") + quote(key) + ": " + repr(item);
    return "{" + out + "}";
  }
  return python_str(value);
}

}  // namespace

std::optional<PromptJson> parse_prompt_json(std::string_view text) {
  if (text.starts_with("\xEF\xBB\xBF")) return std::nullopt;
  std::size_t events = 0;
  const auto check = [&](int depth, PromptJson::parse_event_t, PromptJson&) {
    require(depth <= kMaxJsonDepth, "the prompt's JSON is nested deeper than {} levels", kMaxJsonDepth);
    require(++events <= kMaxJsonEvents, "the prompt's JSON has more than {} values and names",
            kMaxJsonEvents);
    return true;
  };
  try {
    return PromptJson::parse(text, check);
  } catch (const PromptJson::exception&) {
    return std::nullopt;
  }
}

std::string number_text(const PromptJson& number) {
  return number.is_number_float() ? float_text(number.get<double>()) : number.dump();
}

std::string dump_json(const PromptJson& value) {
  if (value.is_number()) return number_text(value);
  if (value.is_array()) {
    std::string out;
    for (const auto& item : value) out += (out.empty() ? "" : ", ") + dump_json(item);
    return "[" + out + "]";
  }
  if (value.is_object()) {
    std::string out;
    for (const auto& [key, item] : value.items())
      out += (out.empty() ? "" : ", ") + PromptJson(key).dump() + ": " + dump_json(item);
    return "{" + out + "}";
  }
  return value.dump();
}

std::string python_str(const PromptJson& value) {
  if (value.is_string()) return value.get<std::string>();
  if (value.is_null()) return "None";
  if (value.is_boolean()) return value.get<bool>() ? "True" : "False";
  return value.is_number() ? number_text(value) : repr(value);
}

std::string collapse_spaces(std::string_view text) {
  std::string out;
  bool gap = false;
  for (std::size_t at = 0, length = 0; at < text.size(); at += length) {
    const char32_t c = code_point_at(text, at, length);
    if (is_space(c)) {
      gap = !out.empty();
      continue;
    }
    if (gap) out += ' ';
    gap = false;
    append_utf8(out, c);
  }
  return out;
}

std::string_view trim_end(std::string_view text) {
  std::size_t end = 0;
  for (std::size_t at = 0, length = 0; at < text.size(); at += length) {
    if (!is_space(code_point_at(text, at, length))) end = at + length;
  }
  return text.substr(0, end);
}

void replace_all(std::string& text, std::string_view what, std::string_view with) {
  if (what.empty()) return;
  for (std::size_t at = 0; (at = text.find(what, at)) != std::string::npos; at += with.size())
    text.replace(at, what.size(), with);
}

bool is_blank(std::string_view text) {
  return trim_end(text).empty();
}

}  // namespace magi
