// SPDX-License-Identifier: Apache-2.0
// What an enhanced caption looks like: one description of its fields, from which come the JSON schema that a
// language model is held to, the outline in its instructions, and the check of its answer.
#pragma once

#include <string>
#include <vector>

#include "text/json_text.h"

namespace magi {

/// Fields in the order they are wanted. A shape is an object of shapes, a list with the shape of its items,
/// or one of "string", "number", "integer".
struct CaptionTask {
  std::string name;  ///< "t2v" or "i2v": of the template, too
  PromptJson shape;
  std::vector<std::string> essential;  ///< JSON pointers of what must not be empty
};

const CaptionTask& text_to_video_caption();
const CaptionTask& image_to_video_caption();

/// JSON Schema in the subset that "strict" structured output takes: every field required, no other allowed.
PromptJson json_schema(const PromptJson& shape);

/// Throws Error naming the field that is unknown or of another type, or the first-level or essential one that
/// is missing. Other fields may be missing or null: a caption leaves out what is empty.
void check_caption(const PromptJson& caption, const CaptionTask& task);

}  // namespace magi
