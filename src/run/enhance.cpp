// SPDX-License-Identifier: Apache-2.0
#include "run/enhance.h"

#include <algorithm>
#include <array>
#include <chrono>
#include <cmath>
#include <cstdlib>
#include <thread>

#include "core/log.h"
#include "io/read_file.h"
#include "io/tensor_store.h"
#include "run/caption_shape.h"
#include "run/chat.h"
#include "run/enhance_cache.h"
#include "run/sha256.h"
#include "run/share_directory.h"
#include "text/captions.h"
#include "text/unicode.h"

namespace magi {
namespace {

constexpr std::size_t kMaxReplyBytes = 1 << 20;  // 16384 tokens of caption take a tenth of it
constexpr std::size_t kMaxTemplateBytes = 1 << 20;
constexpr std::size_t kMaxImageBytes = 20'000'000;
constexpr double kLongestWait = 60;

std::string read_template(const std::string& name) {
  const std::filesystem::path path = share_directory() / "prompts" / (name + ".md");
  std::string text = read_file(path, kMaxTemplateBytes);
  require(!text.empty(), "{}: holds no instructions for the language model", path.string());
  decode_utf8(text, path.string());
  return text;
}

std::string instructions(const EnhanceInput& input, const CaptionTask& task) {
  std::string text = read_template(task.name);
  replace_all(text, "{{seconds}}", number_text(PromptJson(input.seconds)));
  replace_all(text, "{{aspect_ratio}}", input.aspect_ratio);
  replace_all(text, "{{fields}}", task.shape.dump(2));
  return text;
}

std::string figure_name(int k) {
  return fmt::format("<Figure {}>", k);
}

PromptJson user_content(const EnhanceInput& input) {
  if (input.images.empty()) return input.prompt;
  auto parts = PromptJson::array({text_part(input.prompt)});
  std::size_t left = kMaxImageBytes;
  for (const ImageInput& image : input.images) {
    PromptJson part = image_part(image.path, left);
    left -= std::min(left, static_cast<std::size_t>(std::filesystem::file_size(image.path)));
    parts.push_back(text_part(figure_name(image.figure) + ":"));
    parts.push_back(std::move(part));
  }
  return parts;
}

/// The caption in an answer, rendered. Throws RetryableError.
std::string render(const PromptJson& caption, const EnhanceInput& input, const CaptionTask& task) {
  try {
    check_caption(caption, task);
  } catch (const Error& error) {
    throw RetryableError(fmt::format("the answer does not keep to the caption's form: {}", error.what()));
  }
  const std::string markdown = caption_markdown(caption);
  for (const ImageInput& image : input.images) {
    const std::string name = figure_name(image.figure);
    if (input.prompt.find(name) != std::string::npos && markdown.find(name) == std::string::npos)
      throw RetryableError(fmt::format("the answer loses {}", name));
  }
  return markdown;
}

PromptJson parse_caption(const std::string& answer) {
  try {
    if (auto caption = parse_prompt_json(answer)) return *std::move(caption);
  } catch (const Error&) {  // nested too deep
  }
  throw RetryableError("the answer is not JSON, or is cut short");
}

/// An error's reason, fit to be shown: servers repeat keys and send whatever they like.
std::string reason_of(const Error& error, const std::string& key) {
  std::string text = error.what();
  if (!key.empty()) replace_all(text, key, "(key)");
  return printable(text);  // last: it shortens, and half a key is not found
}

/// One attempt's answer. `form` moves on for good when the server refuses one.
class Chat {
 public:
  Chat(const ChatRequest& request, const EnhanceOptions& options, const Progress& progress)
      : request_(request), options_(options), progress_(progress) {}

  std::string ask() {
    for (;; ++form_) {
      const HttpReply reply = http_post({options_.base_url, options_.api_key, chat_body(request_, form_),
                                         options_.timeout_s, kMaxReplyBytes},
                                        progress_);
      const bool refused = reply.status == 400 || reply.status == 422;
      if (refused && form_ + 1 < kChatForms) continue;
      if (reply.status >= 200 && reply.status < 300) return chat_answer(reply.body);
      fail_status(reply);
    }
  }

 private:
  [[noreturn]] static void fail_status(const HttpReply& reply) {
    const std::string said = chat_error(reply.body);
    const std::string status = fmt::format("status {}{}{}", reply.status, said.empty() ? "" : ": ", said);
    if (reply.status == 408 || reply.status == 429 || reply.status >= 500)
      throw RetryableError(status, reply.retry_after_s);
    if (reply.status >= 300 && reply.status < 400)
      fail("{} (redirects are not followed: give the URL where it leads)", status);
    if (reply.status == 401 || reply.status == 403)
      fail("{} (the key is taken from MAGI2_LLM_API_KEY)", status);
    if (reply.status == 404)
      fail("{} (check the URL, which often ends in /v1, and the model's name)", status);
    fail("{}", status);
  }

  const ChatRequest& request_;
  const EnhanceOptions& options_;
  const Progress& progress_;
  int form_ = 0;
};

void wait(double seconds, const Progress& progress) {
  using Clock = std::chrono::steady_clock;
  const auto end = Clock::now() + std::chrono::duration<double>(std::clamp(seconds, 0.0, kLongestWait));
  for (progress.check(); Clock::now() < end; progress.check())
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
}

/// Asks until an answer passes `accept`, which returns the result or throws RetryableError.
template <typename Accept>
std::string ask_patiently(Chat& chat, const EnhanceOptions& options, const Progress& progress,
                          Accept accept) {
  for (int attempt = 0;; ++attempt) {
    try {
      return accept(chat.ask());
    } catch (const RetryableError& error) {
      const std::string reason = reason_of(error, options.api_key);
      if (attempt >= options.retries)
        fail("prompt enhancement failed, {} attempt{} at {}: {}", attempt + 1, attempt ? "s" : "",
             options.base_url, reason);
      log_warning("prompt enhancement, attempt {} of {}: {}", attempt + 1, options.retries + 1, reason);
      wait(std::max(error.wait_s(), options.backoff_s * std::ldexp(1, std::min(attempt, 10))), progress);
    } catch (const Cancelled&) {
      throw;
    } catch (const Error& error) {
      fail("prompt enhancement failed at {}: {}", options.base_url, reason_of(error, options.api_key));
    }
  }
}

EnhanceOptions checked(EnhanceOptions options) {
  constexpr std::string_view kPath = "/chat/completions";
  options.base_url = checked_base_url(options.base_url);
  if (!options.base_url.ends_with(kPath)) options.base_url += kPath;
  require(options.timeout_s > 0 && options.timeout_s <= 86400,
          "a language model's answer cannot be awaited for {:g} s", options.timeout_s);
  require(options.retries >= 0 && options.retries <= 100, "{} retries: 0 to 100 are possible",
          options.retries);
  require(
      std::all_of(options.api_key.begin(), options.api_key.end(), [](char c) { return c > ' ' && c < 127; }),
      "MAGI2_LLM_API_KEY holds spaces, line ends or characters other than ASCII");
  decode_utf8(options.model, "the language model's name");
  return options;
}

}  // namespace

EnhanceOptions EnhanceOptions::from_environment() {
  const auto variable = [](const char* name) {
    const char* value = std::getenv(name);
    return std::string(value ? value : "");
  };
  EnhanceOptions options;
  options.api_key = variable("MAGI2_LLM_API_KEY");
  if (const std::string cache = variable("XDG_CACHE_HOME"); cache.starts_with('/'))
    options.cache_directory = std::filesystem::path(cache) / "magi2";
  else if (const std::string home = variable("HOME"); !home.empty())
    options.cache_directory = std::filesystem::path(home) / ".cache" / "magi2";
  return options;
}

std::string enhance_prompt(const EnhanceInput& input, const EnhanceOptions& given, Progress& progress) {
  const EnhanceOptions options = checked(given);
  decode_utf8(input.prompt, "the prompt");
  decode_utf8(input.aspect_ratio, "the aspect ratio");
  require(!is_blank(input.prompt), "there is no prompt to enhance");
  progress.stage("enhance", 1);

  const CaptionTask& task = input.images.empty() ? text_to_video_caption() : image_to_video_caption();
  const ChatRequest request{options.model, instructions(input, task), user_content(input),
                            task.name + "_caption", json_schema(task.shape)};
  // The whole request, images included; a server's own model is only known by the server.
  const std::string identity =
      sha256_of(chat_body(request, 0) + (options.model.empty() ? options.base_url : ""));
  const EnhanceCache cache(options.cache_directory);
  if (const auto kept = cache.find(identity)) {
    try {
      return render(*kept, input, task);
    } catch (const RetryableError&) {  // damaged, or by another version: ask again
    }
  }

  if (!options.api_key.empty() && is_exposed(options.base_url))
    log_warning("{}: the key is sent unencrypted; use https", options.base_url);
  Chat chat(request, options, progress);
  const std::string markdown = ask_patiently(chat, options, progress, [&](const std::string& answer) {
    const PromptJson caption = parse_caption(answer);
    std::string text = render(caption, input, task);
    cache.keep(identity, caption);
    return text;
  });
  progress.advance(1);
  return markdown;
}

void enhance_request(Request& request, const EnhanceOptions& options, Progress& progress) {
  if (request.original_prompt) return;
  const Size size = request.refine.value_or(Size{request.width, request.height});
  std::string enhanced = enhance_prompt(
      {request.prompt, request.images, request.seconds, aspect_ratio_name(size)}, options, progress);
  request.original_prompt = std::exchange(request.prompt, std::move(enhanced));
}

std::string aspect_ratio_name(Size size) {
  struct Ratio {
    const char* name;
    double value;
  };
  constexpr std::array<Ratio, 9> kRatios{{{"16:9", 16.0 / 9},
                                          {"9:16", 9.0 / 16},
                                          {"1:1", 1},
                                          {"4:3", 4.0 / 3},
                                          {"3:4", 3.0 / 4},
                                          {"3:2", 3.0 / 2},
                                          {"2:3", 2.0 / 3},
                                          {"21:9", 21.0 / 9},
                                          {"9:21", 9.0 / 21}}};
  const double ratio = static_cast<double>(size.width) / static_cast<double>(size.height);
  const auto distance = [&](const Ratio& r) { return std::abs(std::log(r.value / ratio)); };
  return std::min_element(kRatios.begin(), kRatios.end(),
                          [&](const Ratio& a, const Ratio& b) { return distance(a) < distance(b); })
      ->name;
}

}  // namespace magi
