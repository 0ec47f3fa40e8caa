// SPDX-License-Identifier: Apache-2.0
// JSON in prompts, read and written as the pipeline that the model was trained with does (Python's json and
// str). Prompts are conditioned on to the letter, so a number or a space written differently is another
// prompt.
#pragma once

#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>

namespace magi {

using PromptJson = nlohmann::ordered_json;

/// Deepest nesting of a prompt's JSON.
inline constexpr int kMaxJsonDepth = 100;
/// Most values and names in it: several times what kMaxTokens can hold. Objects that keep their order take
/// quadratic time.
inline constexpr std::size_t kMaxJsonEvents = 30'000;

/// The value, or nothing where the text is not JSON. Throws Error when it is nested deeper than kMaxJsonDepth
/// or holds more than kMaxJsonEvents.
std::optional<PromptJson> parse_prompt_json(std::string_view text);

/// `{"a": 1.0, "b": ["x"]}`: json.dumps with ensure_ascii off.
std::string dump_json(const PromptJson& value);
/// str(value): strings as they are, None, True, 1.0, ['a', {'b': 'c'}].
std::string python_str(const PromptJson& value);
/// A number as JSON and Python write it: shortest digits that read back, `1.0`, `1e-05`, `1e+16`.
std::string number_text(const PromptJson& number);

/// Words joined by single spaces.
std::string collapse_spaces(std::string_view text);
/// Without white space at the end.
std::string_view trim_end(std::string_view text);
/// Every `what` (where that is not empty) becomes `with`.
void replace_all(std::string& text, std::string_view what, std::string_view with);
/// Nothing but white space.
bool is_blank(std::string_view text);

}  // namespace magi
