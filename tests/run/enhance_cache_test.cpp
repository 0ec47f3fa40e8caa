// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include "run/enhance_testing.h"
#include "support/temp_dir.h"

namespace magi {
namespace {

using EnhanceCacheTest = Enhance;

TEST_F(EnhanceCacheTest, CacheAnswersWithoutTheServer) {
  const TempDir dir;
  const ChatServer server([](const ServedRequest&, std::size_t) { return say(kCaption); });
  EnhanceOptions options = quick_options(server);
  options.cache_directory = dir / "new";
  EXPECT_EQ(ask(options), expected_);
  EXPECT_EQ(ask(options), expected_);
  EXPECT_EQ(server.requests().size(), 1u);

  options.model = "other-model";
  ask(options);
  EXPECT_EQ(server.requests().size(), 2u);
  ask(options, {.prompt = "a fox in fog", .images = {}});
  EXPECT_EQ(server.requests().size(), 3u);
  ask(options, {.prompt = "a fox in fog", .images = {}, .seconds = 5});
  EXPECT_EQ(server.requests().size(), 4u);

  for (const auto& entry : std::filesystem::directory_iterator(dir / "new"))
    std::filesystem::resize_file(entry.path(), 40);
  EXPECT_EQ(ask(options), expected_) << "a damaged file is as good as none";
  EXPECT_EQ(server.requests().size(), 5u);
  EXPECT_EQ(ask(options), expected_);
  EXPECT_EQ(server.requests().size(), 5u);
}

TEST_F(EnhanceCacheTest, CacheKnowsPicturesByTheirContent) {
  const TempDir dir;
  const ChatServer server([](const ServedRequest&, std::size_t) { return say(kImageCaption); });
  EnhanceOptions options = quick_options(server);
  options.cache_directory = dir / "cache";
  const auto with = [&](const std::filesystem::path& file) {
    ask(options, {.prompt = "x", .images = {{1, file}}});
    return server.requests().size();
  };
  EXPECT_EQ(with(dir.write("a.png", "\x89PNG\r\n\x1a\n1")), 1u);
  EXPECT_EQ(with(dir.write("b.png", "\x89PNG\r\n\x1a\n1")), 1u);
  EXPECT_EQ(with(dir.write("a.png", "\x89PNG\r\n\x1a\n2")), 2u);
}

TEST_F(EnhanceCacheTest, BadAnswersAreNotKept) {
  const TempDir dir;
  const ChatServer server(
      [](const ServedRequest&, std::size_t number) { return say(number == 0 ? "{}" : kCaption); });
  EnhanceOptions options = quick_options(server);
  options.cache_directory = dir / "cache";
  expect_error([&] { ask(options); }, "missing");
  EXPECT_EQ(ask(options), expected_);
}

TEST_F(EnhanceCacheTest, UnwritableCacheCostsAWarning) {
  const TempDir dir;
  const ChatServer server([](const ServedRequest&, std::size_t) { return say(kCaption); });
  EnhanceOptions options = quick_options(server);
  options.cache_directory = dir.write("a file", "") / "cache";
  EXPECT_EQ(ask(options), expected_);
  EXPECT_NE(log_.find("not kept"), std::string::npos);
}

}  // namespace
}  // namespace magi
