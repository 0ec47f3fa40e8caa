// SPDX-License-Identifier: Apache-2.0
// One engine, many requests: the bytes of a clip do not depend on what was made before it, on text that was
// encoded ahead, on frames that were looked at, or on an interruption.
#include "run/engine.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <thread>

#include "media/image_reader.h"
#include "run/tiny_root.h"
#include "support/file_bytes.h"
#include "support/temp_dir.h"

namespace magi {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::json;

/// Looks at every frame; cancels after a step.
class Watcher final : public ClipWatcher {
 public:
  Watcher(Progress& progress, std::int64_t cancel_after) : progress_(progress), cancel_after_(cancel_after) {}
  bool wants_frame(const StepRecord& step) override {
    if (step.step == cancel_after_) progress_.cancel();
    return true;
  }
  void frame(const StepRecord&, const Tensor& rgb) override { frames.push_back(rgb); }
  std::vector<Tensor> frames;

 private:
  Progress& progress_;
  std::int64_t cancel_after_;
};

class EngineTest : public testing::Test {
 protected:
  EngineTest() {
    write_tiny_root(directory_ / "root", 1);
    root_.emplace(directory_ / "root", std::nullopt);
    options_.keep_parts = true;
  }
  fs::path path(const std::string& name) const { return directory_ / name; }
  ClipTask task(const std::string& name, const Json& changes = Json::object()) const {
    Json request{{"prompt", "A fox."}, {"width", 64}, {"height", 48}, {"seconds", 0.4}, {"steps", 5}};
    request.update(changes);
    return {Request::from_json(request, root_->defaults(), "request"), path(name), {}, {}, {}};
  }
  std::string plain(const ClipTask& like) const {
    Progress progress;
    ClipTask task = like;
    task.output = path("plain.mp4");
    EXPECT_EQ(generate(*root_, {task}, progress).at(0).error, "");
    return bytes_of(task.output);
  }

  TempDir directory_;
  std::optional<CheckpointRoot> root_;
  EngineOptions options_;
};

TEST_F(EngineTest, ClipsAreThoseOfAFreshProgram) {
  Engine engine(*root_, options_);
  Progress progress;
  for (const Json& changes : {Json::object(), Json{{"image", path("root/example.png").string()}},
                              Json{{"refine", "96x64"}, {"refiner_steps", 1}}}) {
    ClipTask clip = task("clip.mp4", changes);
    clip.text = engine.encode_text(clip.request, progress);
    EXPECT_TRUE(engine.can_encode_ahead(clip.request.dtype));
    clip.thumbnail = path("clip.jpg");
    clip.sound = path("clip.wav");
    EXPECT_EQ(engine.make(clip, progress).error, "");
    EXPECT_EQ(bytes_of(path("clip.mp4")), plain(clip)) << changes;
    EXPECT_EQ(read_image(path("clip.jpg")).shape(),
              (changes.contains("refine") ? Shape{64, 96, 3} : Shape{48, 64, 3}));
    EXPECT_EQ(bytes_of(path("clip.wav")).substr(0, 4), "RIFF");
  }
}

TEST_F(EngineTest, TextEncodedBesideAnotherClip) {
  Engine engine(*root_, options_);
  ClipTask second = task("second.mp4", {{"prompt", "A heron."}});
  std::thread ahead([&] {
    Progress progress;
    second.text = engine.encode_text(second.request, progress);
  });
  Progress progress;
  EXPECT_EQ(engine.make(task("first.mp4"), progress).error, "");
  ahead.join();
  EXPECT_EQ(engine.make(second, progress).error, "");
  EXPECT_EQ(bytes_of(path("first.mp4")), plain(task("")));
  EXPECT_EQ(bytes_of(path("second.mp4")), plain(second));
}

TEST_F(EngineTest, AnInterruptedRunGoesOnWithTheSameBits) {
  for (const std::int64_t cancel_after : {0, 1, 2, 3}) {
    ClipTask clip = task("clip.mp4", {{"refine", "96x64"}, {"refiner_steps", 1}});
    clip.resume = Resume{path("state"), 2};
    {
      Engine engine(*root_, options_);
      Progress progress;
      Watcher watcher(progress, cancel_after);
      clip.watcher = &watcher;
      EXPECT_THROW(engine.make(clip, progress), Cancelled);
      EXPECT_EQ(watcher.frames.size(), static_cast<std::size_t>(cancel_after) + 1);
      EXPECT_EQ(watcher.frames.at(0).shape(), (Shape{48, 64, 3}));
    }
    ASSERT_TRUE(fs::exists(path("state")));
    EXPECT_FALSE(fs::exists(path("clip.mp4")));
    Engine engine(*root_, options_);
    Progress progress;
    clip.watcher = nullptr;
    const Report report = engine.make(clip, progress);
    EXPECT_EQ(report.error, "");
    EXPECT_EQ(report.steps.size(), 4 - static_cast<std::size_t>(cancel_after));
    EXPECT_EQ(bytes_of(path("clip.mp4")), plain(clip)) << "interrupted after step " << cancel_after;
    fs::remove(path("clip.mp4"));
    fs::remove(path("state"));
  }
}

TEST_F(EngineTest, WhatIsNotThisRunsStateIsNotTakenUp) {
  Engine engine(*root_, options_);
  Progress progress;
  ClipTask other = task("other.mp4", {{"seed", 7}});
  other.resume = Resume{path("state"), 1};
  EXPECT_EQ(engine.make(other, progress).error, "");
  const std::string state = bytes_of(path("state"));
  ClipTask clip = task("clip.mp4");
  clip.resume = Resume{path("state"), 1000};
  for (const std::string& content :
       {state, state.substr(0, state.size() / 2), std::string("{}"), std::string()}) {
    directory_.write("state", content);
    const Report report = engine.make(clip, progress);
    EXPECT_EQ(report.error, "");
    EXPECT_EQ(report.steps.size(), 5U);
    EXPECT_EQ(bytes_of(path("clip.mp4")), plain(clip));
  }
}

}  // namespace
}  // namespace magi
