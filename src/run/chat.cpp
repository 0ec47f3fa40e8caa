// SPDX-License-Identifier: Apache-2.0
#include "run/chat.h"

#include <openssl/evp.h>

#include "io/mapped_file.h"

namespace magi {
namespace {

constexpr int kMaxAnswerTokens = 16384;

/// The value at `pointer`, or null.
PromptJson at(const PromptJson& value, const char* pointer) {
  const PromptJson::json_pointer path(pointer);
  return value.contains(path) ? value.at(path) : PromptJson();
}

std::optional<PromptJson> parse_reply(const std::string& text) {
  try {
    return parse_prompt_json(text);
  } catch (const Error&) {  // nested too deep
    return std::nullopt;
  }
}

std::string trimmed(const std::string& text) {
  const std::size_t first = text.find_first_not_of(" \t\r\n");
  if (first == std::string::npos) return {};
  return text.substr(first, text.find_last_not_of(" \t\r\n") + 1 - first);
}

/// Models that cannot be kept from thinking do it in front, and those without a schema like to decorate.
std::string bare_answer(std::string text) {
  constexpr std::string_view kThought = "</think>", kFence = "```";
  if (const std::size_t end = text.rfind(kThought); end != std::string::npos)
    text.erase(0, end + kThought.size());
  text = trimmed(text);
  if (text.starts_with(kFence) && text.ends_with(kFence)) {
    const std::size_t line = text.find('\n');
    if (line == std::string::npos) return {};
    text = trimmed(text.substr(line, text.rfind(kFence) - line));
  }
  return text;
}

std::string_view image_type(std::span<const std::byte> bytes) {
  const std::string_view head(reinterpret_cast<const char*>(bytes.data()),
                              std::min<std::size_t>(bytes.size(), 12));
  if (head.starts_with("\x89PNG\r\n\x1a\n")) return "image/png";
  if (head.starts_with("\xFF\xD8\xFF")) return "image/jpeg";
  if (head.starts_with("RIFF") && head.ends_with("WEBP")) return "image/webp";
  return {};
}

std::string base64(std::span<const std::byte> bytes) {
  std::string text(4 * ((bytes.size() + 2) / 3) + 1, '\0');  // and the terminator that OpenSSL writes
  const int length =
      EVP_EncodeBlock(reinterpret_cast<unsigned char*>(text.data()),
                      reinterpret_cast<const unsigned char*>(bytes.data()), static_cast<int>(bytes.size()));
  text.resize(static_cast<std::size_t>(length));
  return text;
}

}  // namespace

std::string chat_body(const ChatRequest& request, int form) {
  auto body = PromptJson::object();
  if (!request.model.empty()) body["model"] = request.model;
  body["messages"] =
      PromptJson::array({PromptJson::object({{"role", "system"}, {"content", request.instructions}}),
                         PromptJson::object({{"role", "user"}, {"content", request.content}})});
  body["stream"] = false;
  if (form < 3)
    body["response_format"] =
        PromptJson::object({{"type", "json_schema"},
                            {"json_schema", PromptJson::object({{"name", request.schema_name},
                                                                {"strict", true},
                                                                {"schema", request.schema}})}});
  if (form == 0) {
    body["max_tokens"] = kMaxAnswerTokens;
    body["chat_template_kwargs"] = PromptJson::object({{"enable_thinking", false}, {"thinking", false}});
  } else if (form == 1) {
    body["max_completion_tokens"] = kMaxAnswerTokens;
    body["reasoning_effort"] = "low";
  }
  return body.dump();
}

std::string chat_answer(const std::string& reply) {
  const auto json = parse_reply(reply);
  if (!json) throw RetryableError("the reply is not JSON, or is cut short");
  const PromptJson refusal = at(*json, "/choices/0/message/refusal");
  if (refusal.is_string() && !refusal.get_ref<const std::string&>().empty())
    throw RetryableError("the model refuses: " + refusal.get<std::string>());
  const PromptJson content = at(*json, "/choices/0/message/content");
  if (!content.is_string() && !content.is_null())
    throw RetryableError("the reply's choices[0].message.content is not a text");
  if (content.is_null() && !json->contains("choices")) {
    const std::string error = chat_error(reply);
    throw RetryableError("the reply has no choices" + (error.empty() ? "" : ": " + error));
  }
  if (at(*json, "/choices/0/finish_reason") == "length")
    throw RetryableError("the answer is cut off at the model's token limit");
  std::string answer = content.is_null() ? "" : bare_answer(content.get<std::string>());
  if (answer.empty()) throw RetryableError("the answer is empty");
  return answer;
}

std::string chat_error(const std::string& reply) {
  const auto json = parse_reply(reply);
  if (!json) return {};
  for (const char* pointer : {"/error/message", "/0/error/message", "/error", "/message", "/detail"}) {
    const PromptJson message = at(*json, pointer);
    if (message.is_string()) return collapse_spaces(message.get<std::string>());
  }
  return {};
}

PromptJson image_part(const std::filesystem::path& file, std::size_t max_bytes) {
  const auto mapped = MappedFile::open(file);
  const auto bytes = mapped->bytes();
  require(bytes.size() <= max_bytes,
          "{}: {} bytes of images are too much for a language model, at most {} fit", file.string(),
          bytes.size(), max_bytes);
  const std::string_view type = image_type(bytes);
  require(!type.empty(), "{}: not a PNG, JPEG or WebP file", file.string());
  return PromptJson::object(
      {{"type", "image_url"},
       {"image_url", PromptJson::object({{"url", fmt::format("data:{};base64,{}", type, base64(bytes))}})}});
}

PromptJson text_part(const std::string& text) {
  return PromptJson::object({{"type", "text"}, {"text", text}});
}

}  // namespace magi
