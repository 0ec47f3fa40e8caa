// SPDX-License-Identifier: Apache-2.0
// What tests of prompt enhancement share: captions, a server's replies, and an enhancer in a hurry.
#pragma once

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

#include "core/log.h"
#include "run/chat_server.h"
#include "run/enhance.h"
#include "support/expect_error.h"
#include "text/captions.h"

namespace magi {

inline constexpr const char* kCaption = R"({
  "global_layer": {"context": "Snow at dawn.", "description": "A fox crosses a field.", "aesthetics": {"style": ""}},
  "dynamic_layer": {"timeline_segments": [{"segment_basic_info": {"timestamp_range": "00:00.0-00:10.0"}}]}})";
inline constexpr const char* kImageCaption = R"({
  "global_caption": {"core_caption": "The fox of <Figure 1> walks."},
  "reference_bank": [], "shot_timeline": [{"time_range_seconds": [0.0, 10.0]}],
  "audio_event_timeline": [], "visible_text": [], "generation_requirements": []})";

inline std::string completion(const std::string& content) {
  return nlohmann::json{
      {"choices", {{{"message", {{"role", "assistant"}, {"content", content}}}, {"finish_reason", "stop"}}}}}
      .dump();
}

inline ServedReply say(const std::string& content) {
  return {.body = completion(content)};
}

inline EnhanceOptions quick_options(const ChatServer& server) {
  EnhanceOptions options;
  options.base_url = server.url();
  options.model = "some-model";
  options.timeout_s = 5;
  options.retries = 0;
  options.backoff_s = 0.01;
  return options;
}

/// Keeps what is logged.
class Enhance : public testing::Test {
 protected:
  Enhance() {
    set_log_sink([this](LogLevel, std::string_view line) { log_ += std::string(line) + "\n"; });
  }
  ~Enhance() override {
    set_log_sink([](LogLevel, std::string_view) {});
  }

  std::string ask(const EnhanceOptions& options,
                  const EnhanceInput& input = {.prompt = "a fox in snow", .images = {}}) {
    return enhance_prompt(input, options, progress_);
  }
  /// The server's first reply, or what becomes of it.
  void expect_failure(const ServedReply& reply, std::string_view part) {
    const ChatServer server([&](const ServedRequest&, std::size_t) { return reply; });
    expect_error([&] { ask(quick_options(server)); }, part);
  }
  /// One bad reply, then a good one.
  void expect_retried(const ServedReply& bad, const char* logged) {
    log_.clear();
    const ChatServer server(
        [&](const ServedRequest&, std::size_t number) { return number == 0 ? bad : say(kCaption); });
    EnhanceOptions options = quick_options(server);
    options.retries = 1;
    options.timeout_s = 1;
    EXPECT_EQ(ask(options), expected_);
    EXPECT_EQ(server.requests().size(), 2u);
    EXPECT_NE(log_.find(logged), std::string::npos) << log_;
  }

  std::string expected_ = caption_markdown(PromptJson::parse(kCaption));
  Progress progress_;
  std::string log_;
};

}  // namespace magi
