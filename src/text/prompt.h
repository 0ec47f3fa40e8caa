// SPDX-License-Identifier: Apache-2.0
// From what a person (or the enhancer) wrote to the text that is tokenised (pipeline.md sections 5 and 7).
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "text/tokenizer.h"

namespace magi {

/// A prompt that is a JSON object with a `global_layer` becomes compact lines of text; any other passes
/// unchanged.
std::string flatten_prompt(std::string_view prompt);

/// The prompt with a sentence that ties the first frame to <Figure 1>: as the field `reference_layer` of a
/// JSON object, appended to anything else. Comes before flatten_prompt.
std::string with_figure_reference(std::string_view prompt);

/// Both, for the text encoder. Throws Error for invalid UTF-8 and for a prompt without any text.
std::string prepare_prompt(std::string_view prompt, bool has_image);

/// Where `<Figure k>` first stands in the flattened text, in code points; nothing if it does not.
std::optional<TokenSpan> figure_span(std::string_view text, int k);

/// Indices of the tokens that overlap `span`: the figure's special token is the mean of their features, and
/// zero if there are none.
std::vector<std::int64_t> tokens_in(const Tokens& tokens, TokenSpan span);

}  // namespace magi
