// SPDX-License-Identifier: Apache-2.0
#include "run/enhance.h"

#include <gtest/gtest.h>

#include <chrono>
#include <cstdlib>
#include <thread>

#include "run/batch.h"
#include "run/enhance_testing.h"
#include "support/temp_dir.h"

namespace magi {
namespace {

TEST_F(Enhance, AsksWithSchemaAndKeyAndRendersMarkdown) {
  const ChatServer server([](const ServedRequest&, std::size_t) { return say(kCaption); });
  EnhanceOptions options = quick_options(server);
  options.base_url += "/";
  options.api_key = "sk-secret-123";
  EXPECT_EQ(ask(options), expected_);
  EXPECT_NE(expected_.find("# global_layer"), std::string::npos);

  ASSERT_EQ(server.requests().size(), 1u);
  const ServedRequest request = server.requests()[0];
  EXPECT_TRUE(request.head.starts_with("POST /v1/chat/completions HTTP/1.1\r\n")) << request.head;
  EXPECT_NE(request.head.find("Authorization: Bearer sk-secret-123\r\n"), std::string::npos);
  const nlohmann::json body = nlohmann::json::parse(request.body);
  EXPECT_EQ(body.at("model"), "some-model");
  EXPECT_EQ(body.at("/response_format/type"_json_pointer), "json_schema");
  EXPECT_EQ(body.at("/response_format/json_schema/strict"_json_pointer), true);
  EXPECT_EQ(body.at("/response_format/json_schema/schema/required"_json_pointer),
            (nlohmann::json{"global_layer", "dynamic_layer"}));
  EXPECT_EQ(body.at("/chat_template_kwargs/enable_thinking"_json_pointer), false);
  EXPECT_EQ(body.at("/messages/1/content"_json_pointer), "a fox in snow");
  const std::string instructions = body.at("/messages/0/content"_json_pointer);
  EXPECT_EQ(instructions.find("{{"), std::string::npos) << "a placeholder is left";
  EXPECT_NE(instructions.find("Length: 10.0 seconds. Frame: 16:9"), std::string::npos);
  EXPECT_NE(instructions.find("\"mood_atmosphere\": \"string\""), std::string::npos);
  EXPECT_EQ(log_.find("secret"), std::string::npos);
}

TEST_F(Enhance, SendsNoKeyAndNoModelWhereThereAreNone) {
  const ChatServer server([](const ServedRequest&, std::size_t) { return say(kCaption); });
  EnhanceOptions options = quick_options(server);
  options.model.clear();
  ask(options);
  EXPECT_EQ(server.requests().at(0).head.find("Authorization"), std::string::npos);
  EXPECT_FALSE(nlohmann::json::parse(server.requests().at(0).body).contains("model"));
}

TEST_F(Enhance, SendsImagesAsDataUrls) {
  const TempDir dir;
  const auto png = dir.write("a.jpeg", "\x89PNG\r\n\x1a\n12345");  // the content counts, not the name
  const auto webp = dir.write("b", std::string("RIFF\x04\0\0\0WEBPx", 13));
  const ChatServer server([](const ServedRequest&, std::size_t) { return say(kImageCaption); });
  ask(quick_options(server), {.prompt = "<Figure 1> walks", .images = {{1, png}, {2, webp}}});
  const auto parts =
      nlohmann::json::parse(server.requests().at(0).body).at("/messages/1/content"_json_pointer);
  ASSERT_EQ(parts.size(), 5u);
  EXPECT_EQ(parts[0].at("text"), "<Figure 1> walks");
  EXPECT_EQ(parts[1].at("text"), "<Figure 1>:");
  EXPECT_EQ(parts[2].at("/image_url/url"_json_pointer), "data:image/png;base64,iVBORw0KGgoxMjM0NQ==");
  EXPECT_EQ(parts[3].at("text"), "<Figure 2>:");
  EXPECT_EQ(parts[4].at("/image_url/url"_json_pointer), "data:image/webp;base64,UklGRgQAAABXRUJQeA==");
}

TEST_F(Enhance, RefusesFilesThatAreNoPicturesBeforeAnythingIsSent) {
  const TempDir dir;
  const ChatServer server([](const ServedRequest&, std::size_t) { return say(kImageCaption); });
  const auto try_file = [&](const std::filesystem::path& file, std::string_view part) {
    expect_error([&] { ask(quick_options(server), {.prompt = "x", .images = {{1, file}}}); }, part);
  };
  try_file(dir.write("text.png", "hello"), "not a PNG, JPEG or WebP file");
  try_file(dir.write("empty.png", ""), "empty.png");
  try_file(dir / "none.png", "none.png");
  try_file(dir.path(), "");
  const auto large = dir.write("large.png", "\x89PNG\r\n\x1a\n");
  std::filesystem::resize_file(large, 20'000'001);
  try_file(large, "at most 20000000");
  EXPECT_TRUE(server.requests().empty());
}

TEST_F(Enhance, AnswerMustKeepTheFiguresOfThePrompt) {
  const TempDir dir;
  const auto png = dir.write("a.png", "\x89PNG\r\n\x1a\n");
  const ChatServer server([](const ServedRequest&, std::size_t) { return say(kImageCaption); });
  expect_error(
      [&] {
        ask(quick_options(server), {.prompt = "<Figure 2> walks", .images = {{1, png}, {2, png}}});
      },
      "loses <Figure 2>");
}

TEST_F(Enhance, BadAnswersAreRetried) {
  expect_retried({.status = 500, .body = R"({"error": {"message": "over\nloaded"}})"},
                 "status 500: over loaded");
  expect_retried({.status = 429}, "status 429");
  expect_retried({.body = completion(kCaption).substr(0, 80)}, "not JSON, or is cut short");
  expect_retried({.body = completion(kCaption), .cut_at = 50}, "attempt 1 of 2");
  expect_retried({.no_reply = true}, "attempt 1 of 2");
  expect_retried({.body = completion(kCaption), .delay_s = 1.5}, "no reply within 1 s");
  expect_retried({.body = std::string(3 << 20, ' ')}, "longer than 1048576 bytes");
  expect_retried(say("{\"global_layer\": {"), "the answer is not JSON");
  expect_retried(say(std::string(1000, '[')), "the answer is not JSON");
  expect_retried(say("a fox walks through snow"), "the answer is not JSON");
  expect_retried(say(R"({"global_layer": {}})"), "dynamic_layer is missing");
  expect_retried(say(R"(["global_layer"])"), "not an object");
  expect_retried(say(""), "the answer is empty");
  expect_retried(say("<think>hm</think>\n"), "the answer is empty");
  expect_retried({.body = R"({"choices": [{"message": {"content": null}}]})"}, "the answer is empty");
  expect_retried({.body = R"({"choices": []})"}, "the answer is empty");
  expect_retried({.body = R"({"choices": 3})"}, "the answer is empty");
  expect_retried({.body = "[]"}, "no choices");
  expect_retried({.body = R"({"error": "no slot"})"}, "no choices: no slot");
  expect_retried({.body = R"({"choices": [{"message": {"content": "{"}, "finish_reason": "length"}]})"},
                 "cut off");
  expect_retried({.body = R"({"choices": [{"message": {"content": null, "refusal": "No."}}]})"},
                 "refuses: No.");
}

TEST_F(Enhance, GivesUpAfterTheRetries) {
  const ChatServer server([](const ServedRequest&, std::size_t) { return ServedReply{.status = 503}; });
  EnhanceOptions options = quick_options(server);
  options.retries = 2;
  expect_error([&] { ask(options); }, "3 attempts at " + server.url() + "/chat/completions: status 503");
  EXPECT_EQ(server.requests().size(), 3u);
}

TEST_F(Enhance, WaitsAsLongAsTheServerAsks) {
  const ChatServer server([](const ServedRequest&, std::size_t number) {
    return number == 0 ? ServedReply{.status = 429, .headers = "Retry-After: 1\r\n"} : say(kCaption);
  });
  EnhanceOptions options = quick_options(server);
  options.retries = 1;
  const auto start = std::chrono::steady_clock::now();
  ask(options);
  EXPECT_GE(std::chrono::steady_clock::now() - start, std::chrono::milliseconds(1000));
}

TEST_F(Enhance, DoesNotRetryWhatCannotHelp) {
  const auto once = [&](int status, const char* headers, std::string_view part) {
    const ChatServer server(
        [&](const ServedRequest&, std::size_t) { return ServedReply{.status = status, .headers = headers}; });
    EnhanceOptions options = quick_options(server);
    options.retries = 5;
    expect_error([&] { ask(options); }, part);
    EXPECT_EQ(server.requests().size(), 1u);
  };
  once(401, "", "MAGI2_LLM_API_KEY");
  once(404, "", "check the URL");
  once(302, "Location: http://127.0.0.1:9/elsewhere\r\n", "redirects are not followed");
}

TEST_F(Enhance, ServersThatKnowFewerFieldsAreAskedMorePlainly) {
  const ChatServer server([](const ServedRequest& request, std::size_t) {
    const auto body = nlohmann::json::parse(request.body);
    for (const char* unknown : {"chat_template_kwargs", "reasoning_effort", "response_format"})
      if (body.contains(unknown)) return ServedReply{.status = unknown[0] == 'r' ? 422 : 400};
    return say("<think>Fox?</think>\n```json\n" + std::string(kCaption) + "\n```\n");
  });
  EXPECT_EQ(ask(quick_options(server)), expected_);
  EXPECT_EQ(server.requests().size(), 4u);
  expect_failure({.status = 400, .body = R"({"error": {"message": "context too long"}})"},
                 "context too long");
}

TEST_F(Enhance, NeverShowsTheKey) {
  const std::string key = "sk-secret-123";
  const ChatServer server([&](const ServedRequest&, std::size_t number) {
    return ServedReply{.status = number == 0 ? 500 : 401,
                       .body = nlohmann::json{{"error", {{"message", std::string(170, 'x') + key}}}}.dump()};
  });
  EnhanceOptions options = quick_options(server);
  options.api_key = key;
  options.retries = 1;
  std::string shown;
  try {
    ask(options);
  } catch (const Error& error) {
    shown = error.what();
  }
  shown += log_;
  EXPECT_NE(shown.find("status 500"), std::string::npos);
  EXPECT_NE(shown.find("status 401"), std::string::npos);
  EXPECT_EQ(shown.find("sk-s"), std::string::npos) << shown;
  options.api_key = "two\r\nlines";
  expect_error([&] { ask(options); }, "MAGI2_LLM_API_KEY");
}

TEST_F(Enhance, CancelTakesEffectWithinASecond) {
  const ChatServer server([](const ServedRequest&, std::size_t) {
    return ServedReply{.body = completion(kCaption), .delay_s = 5};
  });
  std::thread cancel([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(200));
    progress_.cancel();
  });
  const auto start = std::chrono::steady_clock::now();
  EXPECT_THROW(ask(quick_options(server)), Cancelled);
  EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::milliseconds(1200));
  cancel.join();
}

TEST_F(Enhance, RefusesOtherThanPlainHttpUrls) {
  EnhanceOptions options;
  const auto refuse = [&](const char* url, std::string_view part) {
    options.base_url = url;
    expect_error([&] { ask(options); }, part);
  };
  refuse("", "not one like http://");
  refuse("file:///etc/passwd", "http or https");
  refuse("ftp://host/v1", "http or https");
  refuse("http://", "not one like http://");
  refuse("http://me:secret@host/v1", "MAGI2_LLM_API_KEY");
  refuse("https://host/v1?key=1", "before any ?");
  refuse("http://host/\r\nX: y", "not one like http://");
}

TEST_F(Enhance, RefusesBadInput) {
  const ChatServer server([](const ServedRequest&, std::size_t) { return say(kCaption); });
  EnhanceOptions options = quick_options(server);
  expect_error([&] { ask(options, {.prompt = " \n", .images = {}}); }, "no prompt");
  expect_error([&] { ask(options, {.prompt = "caf\xe9", .images = {}}); }, "the prompt");
  options.timeout_s = 0;
  expect_error([&] { ask(options); }, "0 s");
  options.timeout_s = 1;
  options.retries = -1;
  expect_error([&] { ask(options); }, "retries");
  EXPECT_TRUE(server.requests().empty());
}

TEST_F(Enhance, EnvironmentsProxyIsNotUsed) {
  const ChatServer proxy([](const ServedRequest&, std::size_t) { return say(kCaption); });
  const ChatServer server([](const ServedRequest&, std::size_t) { return say(kCaption); });
  ::setenv("http_proxy", proxy.url().c_str(), 1);
  ask(quick_options(server));
  ::unsetenv("http_proxy");
  EXPECT_TRUE(proxy.requests().empty());
  EXPECT_EQ(server.requests().size(), 1u);
}

TEST_F(Enhance, NobodyThereIsAnErrorInOneLine) {
  EnhanceOptions options;
  options.base_url = "http://127.0.0.1:1/v1";
  options.retries = 0;
  expect_error([&] { ask(options); }, "http://127.0.0.1:1/v1/chat/completions: Couldn't connect");
}

TEST_F(Enhance, RequestKeepsItsOriginalPrompt) {
  const ChatServer server([](const ServedRequest&, std::size_t) { return say(kCaption); });
  GenerationDefaults defaults;
  Request request =
      Request::from_json({{"prompt", "a fox in snow"}, {"width", 512}, {"height", 896}}, defaults, "r");
  enhance_request(request, quick_options(server), progress_);
  EXPECT_EQ(request.prompt, expected_);
  EXPECT_EQ(request.original_prompt, "a fox in snow");
  const nlohmann::json metadata = request.to_metadata();
  EXPECT_EQ(metadata.at("prompt"), expected_);
  EXPECT_EQ(metadata.at("original_prompt"), "a fox in snow");
  EXPECT_EQ(Request::from_json(metadata, defaults, "metadata").to_metadata(), metadata);
  EXPECT_NE(server.requests().at(0).body.find("Frame: 9:16"), std::string::npos);
}

TEST_F(Enhance, OneFailureDoesNotEndABatch) {
  const ChatServer server([](const ServedRequest& request, std::size_t) {
    return request.body.find("a bad one") == std::string::npos ? say(kCaption) : say("no");
  });
  std::vector<ClipTask> tasks(4);
  tasks[0].request.prompt = "a bad one";
  tasks[1].request.prompt = "a fox in snow";
  tasks[2].error = "wrong before";
  tasks[3].request.prompt = "long already";
  tasks[3].request.original_prompt = "short";
  for (ClipTask& task : tasks) task.request.width = 896, task.request.height = 512, task.request.seconds = 10;
  enhance_tasks(tasks, quick_options(server), progress_);
  EXPECT_NE(tasks[0].error.find("not JSON"), std::string::npos) << tasks[0].error;
  EXPECT_EQ(tasks[0].request.prompt, "a bad one");
  EXPECT_EQ(tasks[1].error, "");
  EXPECT_EQ(tasks[1].request.prompt, expected_);
  EXPECT_EQ(tasks[2].error, "wrong before");
  EXPECT_EQ(tasks[3].request.prompt, "long already");
  EXPECT_EQ(server.requests().size(), 2u);
  tasks[0].error.clear();
  progress_.cancel();
  EXPECT_THROW(enhance_tasks(tasks, quick_options(server), progress_), Cancelled);
}

TEST(AspectRatioName, IsTheNearest) {
  EXPECT_EQ(aspect_ratio_name({896, 512}), "16:9");
  EXPECT_EQ(aspect_ratio_name({1920, 1088}), "16:9");
  EXPECT_EQ(aspect_ratio_name({512, 896}), "9:16");
  EXPECT_EQ(aspect_ratio_name({512, 512}), "1:1");
  EXPECT_EQ(aspect_ratio_name({640, 480}), "4:3");
  EXPECT_EQ(aspect_ratio_name({8192, 16}), "21:9");
}

TEST(EnhanceOptions, ComeFromTheEnvironment) {
  const auto set = [](const char* name, const char* value) { ::setenv(name, value, 1); };
  set("MAGI2_LLM_API_KEY", "k");
  set("XDG_CACHE_HOME", "/somewhere/cache");
  EXPECT_EQ(EnhanceOptions::from_environment().api_key, "k");
  EXPECT_EQ(EnhanceOptions::from_environment().cache_directory, "/somewhere/cache/magi2");
  set("XDG_CACHE_HOME", "relative");
  set("HOME", "/home/me");
  EXPECT_EQ(EnhanceOptions::from_environment().cache_directory, "/home/me/.cache/magi2");
  ::unsetenv("MAGI2_LLM_API_KEY");
  ::unsetenv("XDG_CACHE_HOME");
}

}  // namespace
}  // namespace magi
