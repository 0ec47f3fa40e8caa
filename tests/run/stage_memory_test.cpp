// SPDX-License-Identifier: Apache-2.0
// The memory that a dry run tells is the memory that the run takes.
#include "run/stage_memory.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <fstream>
#include <nlohmann/json.hpp>

#include "media/image_reader.h"
#include "media/image_resize.h"
#include "ops/devices.h"
#include "run/generate.h"
#include "run/tiny_root.h"
#include "support/backend.h"
#include "support/expect_error.h"
#include "support/temp_dir.h"
#include "text/tokenizer.h"

namespace magi {
namespace {

class StageMemoryTest : public testing::Test {
 protected:
  StageMemoryTest() : root_((write_tiny_root(directory_ / "root", 1), directory_ / "root"), std::nullopt) {}

  Request request(const nlohmann::json& changes = nlohmann::json::object()) const {
    nlohmann::json j{{"prompt", "A fox."}, {"width", 64}, {"height", 48}, {"seconds", 0.4}, {"steps", 1}};
    if (changes.contains("preset")) j.erase("width"), j.erase("height");
    j.update(changes);
    return Request::from_json(j, root_.defaults(), "test");
  }

  TempDir directory_;
  CheckpointRoot root_;
};

TEST_F(StageMemoryTest, ScratchIsWhatTheRunTakes) {
  for (const auto& [dtype, vae] : {std::pair<std::string, std::string>{"f32", "wan"}, {"bf16", "turbo"}}) {
    const Request r = request({{"image", (directory_ / "root" / "example.png").string()},
                               {"refine", "96x64"},
                               {"refiner_steps", 1},
                               {"vae", vae},
                               {"dtype", dtype}});
    StageSizes sizes = stage_sizes(Tokenizer::load(root_.text_encoder() / "tokenizer.json"), r);
    const Tensor picture = prepare_reference_image(read_image(r.images[0].path, {}), r.width, r.height);
    sizes.images = {{picture.dim(0) / 16, picture.dim(1) / 16}};
    Progress progress;
    ClipTask task;
    task.request = r;
    task.output = directory_ / "clip.mp4";
    const Report report = generate(root_, {task}, progress, {test_device()}).at(0);
    ASSERT_EQ(report.error, "");
    const std::vector<Stage> stages = stages_of(r);
    ASSERT_EQ(report.stages.size(), stages.size());
    for (std::size_t i = 0; i < stages.size(); ++i) {
      const StageMemory memory = stage_memory(stages[i], root_, r, sizes, {test_device()});
      EXPECT_EQ(report.stages[i].name, name_of(stages[i]));
      EXPECT_EQ(report.stages[i].peak_scratch_bytes, memory.scratch_bytes)
          << name_of(stages[i]) << ", " << dtype << ", " << vae;
    }
  }
}

TEST_F(StageMemoryTest, WhatDoesNotFitIsToldWithWhatWould) {
  const Request large = request({{"preset", "1080p"}, {"seconds", 0.4}});
  const StageSizes sizes;
  const auto peak = [&](const Request& r) {
    std::size_t bytes = 0;
    for (const Stage stage : stages_of(r))
      bytes = std::max(bytes, stage_memory(stage, root_, r, sizes, {}).bytes());
    return bytes;
  };
  const std::size_t refined = peak(large), medium = peak(request({{"preset", "540p"}, {"seconds", 0.4}})),
                    small = peak(request({{"preset", "272p"}, {"seconds", 0.4}}));
  EXPECT_GT(refined, medium);
  EXPECT_GT(medium, small);
  EXPECT_NO_THROW(require_room(root_, large, sizes, {}, refined));
  expect_error([&] { require_room(root_, large, sizes, {}, refined - 1); }, "without --refine would fit");
  expect_error([&] { require_room(root_, large, sizes, {}, medium - 1); }, "--preset 272p would fit");
  expect_error([&] { require_room(root_, large, sizes, {}, small - 1); }, "no smaller size would fit");
}

// The release's sizes come without a checkpoint, its configuration being the default.
TEST_F(StageMemoryTest, ReleaseSizesWithoutADeviceOrWeights) {
  const CheckpointRoot release(directory_.path(), std::nullopt);
  std::vector<Device> devices{{}};
#ifdef MAGI2_CUDA
  devices.push_back({Device::Kind::cuda, 0});
#endif
  for (const Device device : devices) {
    std::size_t before = 0;
    for (const std::string preset : {"272p", "540p"}) {
      const Request r = request({{"preset", preset}, {"seconds", 10}});
      const StageMemory m = stage_memory(Stage::preview, release, r, {}, {device});
      std::printf("preview, %s, %s: weights %.2f GB, inputs %.2f GB, scratch %.2f GB\n", preset.c_str(),
                  to_string(device).c_str(), static_cast<double>(m.weight_bytes) / 1e9,
                  static_cast<double>(m.input_bytes) / 1e9, static_cast<double>(m.scratch_bytes) / 1e9);
      EXPECT_GT(m.scratch_bytes,
                2 * before);  // four times the rows; some of a GPU's scratch is per block, not per row
      before = m.scratch_bytes;
      if (device.kind == Device::Kind::cpu) continue;
      ASSERT_EQ(m.layer_bytes.size(), 40U);
      // 114B parameters, two bytes each; 36 layers of 12·256 experts of 3·256·1280.
      EXPECT_NEAR(static_cast<double>(m.weight_bytes) / 2e9, 114, 2);
      EXPECT_GT(m.layer_bytes[2], std::size_t{2} * 12 * 256 * 3 * 256 * 1280);
      EXPECT_LT(m.layer_bytes[0], m.layer_bytes[2]);
    }
  }
}

/// The shapes in the files are asked first: activations of a million channels would take gigabytes.
TEST_F(StageMemoryTest, AConfigurationThatTheFilesContradictTakesNoMemory) {
  const std::filesystem::path file = root_.text_encoder() / "config.json";
  nlohmann::json config = nlohmann::json::parse(std::ifstream(file));
  config["text_config"]["hidden_size"] = 1000000;
  std::ofstream(file) << config;
  nlohmann::json arch = nlohmann::json::parse(std::ifstream(directory_ / "root/config.json"));
  arch["arch_config"]["text_in_channels"] = 1000000;
  std::ofstream(directory_ / "root/config.json") << arch;
  const CheckpointRoot root(directory_ / "root", std::nullopt);
  const StageSizes sizes{100000, 100000, {}};
  expect_error([&] { stage_memory(Stage::text, root, request(), sizes, {test_device()}); },
               "expected [320,1000000]");
  expect_error([&] { stage_memory(Stage::preview, root, request(), sizes, {test_device()}); }, "1000000]");
}

}  // namespace
}  // namespace magi
