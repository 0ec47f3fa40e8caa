// SPDX-License-Identifier: Apache-2.0
#include "serve/video_request.h"

#include <array>
#include <charconv>
#include <nlohmann/json.hpp>

#include "io/json_file.h"
#include "media/image_reader.h"
#include "serve/api_error.h"
#include "serve/secret.h"
#include "text/unicode.h"

namespace magi {
namespace {

using Json = nlohmann::json;

constexpr std::int64_t kMaxPriority = 10;
constexpr std::size_t kMaxPictureBytes = 20 << 20;
constexpr std::int64_t kMaxPicturePixels = 36'000'000;

enum class Kind : std::uint8_t { text, integer, number, boolean, picture };

struct Field {
  const char* name;
  Kind kind;
  const char* key;  ///< of a Request; null: handled here
};
constexpr std::array kFields{Field{"model", Kind::text, nullptr},
                             Field{"prompt", Kind::text, "prompt"},
                             Field{"seconds", Kind::number, "seconds"},
                             Field{"size", Kind::text, nullptr},
                             Field{"preset", Kind::text, "preset"},
                             Field{"input_reference", Kind::picture, nullptr},
                             Field{"seed", Kind::integer, "seed"},
                             Field{"num_inference_steps", Kind::integer, "steps"},
                             Field{"negative_prompt", Kind::text, "negative_prompt"},
                             Field{"cfg_video", Kind::number, "cfg_video"},
                             Field{"cfg_audio", Kind::number, "cfg_audio"},
                             Field{"audio", Kind::boolean, "audio"},
                             Field{"enhance", Kind::boolean, nullptr},
                             Field{"priority", Kind::integer, nullptr}};

const Field& field_of(const std::string& name) {
  for (const Field& field : kFields)
    if (name == field.name) return field;
  throw ApiError(400, "unknown_field", "there is no such field", name);
}

template <typename T>
T parsed(const Field& field, const std::string& text, const char* expected) {
  T value{};
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size())
    bad_field(field.name, fmt::format("expected {}", expected));
  return value;
}

/// A form's text as the field's own type.
Json typed(const Field& field, const std::string& text) {
  switch (field.kind) {
    case Kind::integer:
      return parsed<std::int64_t>(field, text, "an integer");
    case Kind::number:
      return parsed<double>(field, text, "a number");
    case Kind::boolean:
      if (text != "true" && text != "false") bad_field(field.name, "expected true or false");
      return text == "true";
    case Kind::text:
    case Kind::picture:
      break;
  }
  return text;
}

void check_type(const Field& field, const Json& value) {
  if (field.kind == Kind::text && !value.is_string()) bad_field(field.name, "expected a string");
  if (field.kind == Kind::integer && !value.is_number_integer()) bad_field(field.name, "expected an integer");
  if (field.kind == Kind::number && !value.is_number()) bad_field(field.name, "expected a number");
  if (field.kind == Kind::boolean && !value.is_boolean()) bad_field(field.name, "expected true or false");
}

/// The fields of a JSON body, nulls left out. Seconds may be a string, as OpenAI's clients send them.
Json fields_of_json(const std::string& body) {
  constexpr std::size_t kMaxValues = 1000;
  Json fields;
  try {
    fields = parse_json(body, "the body", nullptr, kMaxValues);
  } catch (const Error& error) {
    throw ApiError(400, "invalid_json", error.what());
  }
  if (!fields.is_object()) throw ApiError(400, "invalid_json", "the body is not a JSON object");
  for (auto at = fields.begin(); at != fields.end();) {
    const Field& field = field_of(at.key());
    if (field.kind == Kind::number && at->is_string()) *at = typed(field, at->get<std::string>());
    at = at->is_null() ? fields.erase(at) : std::next(at);
  }
  return fields;
}

Json fields_of_form(const HttpRequest& request) {
  Json fields = Json::object();
  for (const auto& [name, file] : request.files)
    if (field_of(name).kind != Kind::picture) bad_field(name, "expected text, not a file");
  for (const auto& [name, text] : request.fields) fields[name] = typed(field_of(name), text);
  return fields;
}

/// A picture in JSON: {"image_url": "data:image/png;base64,…"}.
std::string picture_of(const Json& value) {
  if (!value.is_object() || !value.contains("image_url") || !value["image_url"].is_string())
    bad_field("input_reference", "expected a file, or an object with an image_url that is a data URL");
  const auto& url = value["image_url"].get_ref<const std::string&>();
  constexpr std::string_view kMark = ";base64,";
  const std::size_t mark = url.find(kMark);
  if (!url.starts_with("data:image/") || mark == std::string::npos)
    bad_field("input_reference", "expected a data URL; other URLs are not fetched");
  try {
    return from_base64(std::string_view(url).substr(mark + kMark.size()));
  } catch (const Error&) {
    bad_field("input_reference", "the data URL is not base64");
  }
}

/// Decodes it once, so that a bad one is known now.
void check_picture(const std::string& file) {
  if (file.size() > kMaxPictureBytes)
    throw ApiError(413, "too_large", fmt::format("a picture of more than {} bytes", kMaxPictureBytes),
                   "input_reference");
  try {
    ImageOptions options;
    options.max_pixels = kMaxPicturePixels;
    read_image({reinterpret_cast<const std::uint8_t*>(file.data()), file.size()}, "the picture", options);
  } catch (const Error& e) {
    bad_field("input_reference", e.what());
  }
}

void set_size(Json& request, const std::string& size) {
  const std::size_t x = size.find('x');
  const Field field{"size", Kind::text, nullptr};
  const char* const expected = "WIDTHxHEIGHT, as 896x512";
  if (x == std::string::npos) bad_field("size", fmt::format("expected {}", expected));
  request["width"] = parsed<std::int64_t>(field, size.substr(0, x), expected);
  request["height"] = parsed<std::int64_t>(field, size.substr(x + 1), expected);
}

/// The keys of a Request that a field becomes.
Json engine_keys(const Field& field, const Json& value) {
  Json request = Json::object();
  if (std::string_view(field.name) == "size")
    set_size(request, value.get<std::string>());
  else if (field.key)
    request[field.key] = value;
  return request;
}

/// Without what the checker put in front.
std::string message_of(const Error& error) {
  const std::string text = error.what();
  return text.starts_with("request: ") ? text.substr(9) : text;
}

void check_limits(const Request& request, const RequestLimits& limits) {
  if (request.width * request.height > limits.max_pixels)
    bad_field("size", fmt::format("at most {} pixels", limits.max_pixels));
  if (request.seconds > limits.max_seconds)
    bad_field("seconds", fmt::format("at most {}", limits.max_seconds));
  if (request.steps > limits.max_steps)
    bad_field("num_inference_steps", fmt::format("at most {}", limits.max_steps));
  if (request.prompt.size() > limits.max_prompt_bytes)
    bad_field("prompt", fmt::format("at most {} bytes", limits.max_prompt_bytes));
  if (request.negative_prompt && request.negative_prompt->size() > limits.max_prompt_bytes)
    bad_field("negative_prompt", fmt::format("at most {} bytes", limits.max_prompt_bytes));
}

/// Each field by itself, so that the one at fault is known.
void check_field(const Field& field, const Json& value, const GenerationDefaults& defaults) {
  Json request{{"prompt", "."}};
  try {
    request.update(engine_keys(field, value));
    Request::from_json(request, defaults, "request");
  } catch (const ApiError&) {
    throw;
  } catch (const Error& error) {
    bad_field(field.name, message_of(error));
  }
}

}  // namespace

VideoRequest parse_video_request(HttpRequest& request, const GenerationDefaults& defaults,
                                 const RequestLimits& limits) {
  Json fields = request.is_form ? fields_of_form(request) : fields_of_json(request.body);
  VideoRequest result;
  if (request.files.contains("input_reference"))
    result.reference = std::move(request.files.at("input_reference").content);
  else if (fields.contains("input_reference"))
    result.reference = picture_of(fields["input_reference"]);
  fields.erase("input_reference");

  if (!fields.contains("prompt")) throw ApiError(400, "missing_field", "a prompt is required", "prompt");
  for (const auto& [name, value] : fields.items()) {
    const Field& field = field_of(name);
    check_type(field, value);
    try {
      if (value.is_string()) decode_utf8(value.get_ref<const std::string&>(), name);
    } catch (const Error&) {
      bad_field(name, "not valid UTF-8");
    }
    check_field(field, value, defaults);
  }
  if (fields.value("model", std::string(kModelName)) != kModelName)
    throw ApiError(400, "model_not_found", fmt::format("the only model is {}", kModelName), "model");
  if (fields.contains("size") && fields.contains("preset"))
    bad_field("preset", "size and preset exclude each other");
  if (fields.value("enhance", false) && !limits.can_enhance)
    throw ApiError(400, "unsupported", "this server has no language model to enhance prompts with",
                   "enhance");
  result.priority = fields.value("priority", std::int64_t{0});
  if (result.priority < -kMaxPriority || result.priority > kMaxPriority)
    bad_field("priority", fmt::format("expected {} to {}", -kMaxPriority, kMaxPriority));
  for (const char* key : {"model", "priority"}) fields.erase(key);
  result.json = fields.dump();
  check_limits(plan_video(result.json, defaults, {}, {}).request, limits);
  if (result.reference) check_picture(*result.reference);
  return result;
}

VideoPlan plan_video(const std::string& json, const GenerationDefaults& defaults,
                     const std::optional<std::filesystem::path>& reference,
                     const std::optional<std::string>& enhanced) {
  const Json fields = Json::parse(json);
  Json request = Json::object();
  for (const auto& [name, value] : fields.items()) request.update(engine_keys(field_of(name), value));
  if (reference) request["image"] = reference->string();
  if (enhanced) {
    request["original_prompt"] = request["prompt"];
    request["prompt"] = *enhanced;
  }
  return {Request::from_json(request, defaults, "request"), fields.value("enhance", false)};
}

}  // namespace magi
