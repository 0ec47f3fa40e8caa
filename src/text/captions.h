// SPDX-License-Identifier: Apache-2.0
// Enhanced captions as Markdown, the form that the model was trained on (pipeline.md section 7).
#pragma once

#include <string>

#include "text/json_text.h"

namespace magi {

/// Objects become headings one level down, simple fields `key:value` before nested ones; empty values are
/// left out. Ends with a newline; "" where nothing is left. Keys keep their order.
std::string caption_markdown(const PromptJson& caption);

}  // namespace magi
