// SPDX-License-Identifier: Apache-2.0
// The chat completions protocol of OpenAI, as far as many servers agree on it. Internal to prompt
// enhancement.
#pragma once

#include <filesystem>
#include <string>

#include "run/http_post.h"
#include "text/json_text.h"

namespace magi {

struct ChatRequest {
  std::string model;  ///< empty: not sent
  std::string instructions;
  PromptJson content;  ///< of the user's message: a text, or a list of parts
  std::string schema_name;
  PromptJson schema;  ///< that the answer is held to
};

/// Servers refuse fields that they do not know (400 or 422), and there is no common way to say "do not
/// think". So the forms are tried in turn: chat_template_kwargs (vLLM, SGLang, llama.cpp), reasoning_effort
/// (hosted models), neither, and at last without the schema.
inline constexpr int kChatForms = 4;
std::string chat_body(const ChatRequest& request, int form);

/// The text of the answer in a reply with status 2xx, without a thinking part and without a code fence around
/// it. Throws RetryableError, with words of the server's, where there is none, it is empty or it was cut off.
std::string chat_answer(const std::string& reply);

/// What a reply with another status says, as it stands there; "" where it says nothing readable.
std::string chat_error(const std::string& reply);

/// A part of a user's message that holds a PNG, JPEG or WebP file as a data URL. Throws Error for other files
/// and for those larger than `max_bytes`.
PromptJson image_part(const std::filesystem::path& file, std::size_t max_bytes);
PromptJson text_part(const std::string& text);

}  // namespace magi
