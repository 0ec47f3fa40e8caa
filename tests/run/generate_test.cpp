// SPDX-License-Identifier: Apache-2.0
// Whole clips from a tiny root: the same request gives the same bytes, alone or in a batch, on any number of
// threads.
#include <gtest/gtest.h>
#include <omp.h>

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>

#include "io/checkpoint.h"
#include "support/clip_reader.h"
#include "model/preview.h"
#include "run/batch.h"
#include "run/inventory.h"
#include "run/tiny_root.h"
#include "support/backend.h"
#include "support/expect_error.h"
#include "support/file_bytes.h"
#include "support/temp_dir.h"

namespace magi {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::json;

bool same_bytes(const fs::path& a, const fs::path& b) {
  return bytes_of(a) == bytes_of(b);
}

class Generate : public testing::Test {
 protected:
  Generate() { write_tiny_root(directory_ / "root", 1); }

  CheckpointRoot root() const { return {directory_ / "root", std::nullopt}; }
  fs::path path(const std::string& name) const { return directory_ / name; }
  Json picture() const { return (directory_ / "root" / "example.png").string(); }
  /// The smallest request with changes.
  static Json small(const Json& changes = Json::object()) {
    Json request{{"prompt", "A fox."}, {"width", 64}, {"height", 64}, {"seconds", 0.4}, {"steps", 2}};
    request.update(changes);
    return request;
  }
  /// Makes a clip; its report.
  Report make(const CheckpointRoot& root, const Json& request, const std::string& output,
              std::optional<fs::path> latents = {}) const {
    Progress progress;
    const auto tasks = make_variants(1, {request, path(output), std::move(latents)}, root.defaults());
    const Report report = generate(root, tasks, progress, {test_device()}).at(0);
    EXPECT_EQ(report.error, "");
    return report;
  }
  Report make(const Json& request, const std::string& output, std::optional<fs::path> latents = {}) const {
    return make(root(), request, output, std::move(latents));
  }

  TempDir directory_;
};

TEST_F(Generate, SameSeedSameBytesOnOneThreadAndOnTwo) {
  const int threads = omp_get_max_threads();
  for (const std::string dtype : {"f32", "bf16"}) {
    const Json request = small({{"dtype", dtype}});
    omp_set_num_threads(1);
    const Report one = make(request, "one.mp4", path("one"));
    omp_set_num_threads(2);
    const Report two = make(request, "two.mp4", path("two"));
    EXPECT_EQ(one.sha256, two.sha256) << dtype;
    EXPECT_TRUE(same_bytes(path("one.mp4"), path("two.mp4"))) << dtype;
    EXPECT_TRUE(same_bytes(path("one/latents.safetensors"), path("two/latents.safetensors")));
    const Report other = make(small({{"dtype", dtype}, {"seed", 7}}), "other.mp4");
    for (const auto& [name, sha] : other.sha256) EXPECT_NE(sha, one.sha256.at(name)) << name;
  }
  omp_set_num_threads(threads);
}

TEST_F(Generate, ReportsAndLatents) {
  const Json request = small({{"image", picture()}, {"refine", "96x64"}, {"refiner_steps", 2}});
  const Json stats = make(request, "clip.mp4", path("latents")).to_json();
  std::vector<std::string> stages;
  for (const Json& stage : stats.at("stages")) {
    stages.push_back(stage.at("name"));
    EXPECT_GT(stage.at("seconds").get<double>(), 0);
    EXPECT_GT(stage.at("peak_bytes").get<std::size_t>(), 0U);
  }
  EXPECT_EQ(stages, (std::vector<std::string>{"images", "text", "preview", "refiner", "audio", "video"}));
  EXPECT_EQ(stats.at("steps").size(), 2U);
  EXPECT_EQ(stats.at("refiner_steps").size(), 2U);
  for (const std::string key : {"step", "timestep", "sigma", "seconds"})
    EXPECT_TRUE(stats.at("steps").at(0).contains(key)) << key;
  for (const std::string key : {"latents", "audio_latents", "refined_latents", "frames", "audio"})
    EXPECT_EQ(stats.at("sha256").at(key).get<std::string>().size(), 64U) << key;
  EXPECT_EQ(stats.at("bytes_exchanged"), 0);

  const auto latents = open_checkpoint(path("latents/latents.safetensors"));
  EXPECT_EQ(latents->entries().at("preview_latent").shape, (Shape{48, 2, 4, 4}));
  EXPECT_EQ(latents->entries().at("audio_latent").shape, (Shape{10, 64}));
  EXPECT_EQ(latents->entries().at("refined_latent").shape, (Shape{48, 3, 4, 6}));
  const ClipInfo clip = probe_clip(path("clip.mp4"));
  EXPECT_EQ(clip.width, 96);
  EXPECT_EQ(clip.height, 64);
  EXPECT_EQ(clip.frames, 9);
  EXPECT_EQ(clip.audio_codec, "aac");
}

TEST_F(Generate, AStepAsATrace) {
  const auto tasks = make_variants(1, {small({{"steps", 3}}), path("clip.mp4"), {}}, root().defaults());
  const CheckpointRoot checkpoint = root();
  Progress progress;
  EngineOptions options;
  options.device = test_device();
  options.trace = path("trace.json");
  for (const Report& report : generate(checkpoint, tasks, progress, options)) EXPECT_EQ(report.error, "");
  const Json trace = Json::parse(bytes_of(path("trace.json")));
  EXPECT_EQ(trace.at("traceEvents").at(0).at("args").at("name"), "denoising step 2");
  std::map<std::string, int> calls;
  for (const Json& event : trace.at("traceEvents")) ++calls[event.at("name")];
  EXPECT_EQ(calls["attention"], PreviewConfig::from(checkpoint.config()).layers);
  EXPECT_EQ(calls["mhc_site"], 2 * calls["attention"]);
}

TEST_F(Generate, MetadataMakesTheSameClipAgain) {
  const Json first = small({{"image", picture()},
                            {"refine", "96x64"},
                            {"refiner_steps", 1},
                            {"seed", 9},
                            {"cfg_video", 2.3},
                            {"negative_prompt", "grey"},
                            {"vae", "wan"},
                            {"dtype", "f32"},
                            {"output_width", 50},
                            {"output_height", 34}});
  make(first, "first.mp4");
  Json again = Json::parse(probe_clip(path("first.mp4")).metadata.at("comment"));
  EXPECT_EQ(again.dump().find(directory_.path().string()), std::string::npos) << "a path in " << again;
  EXPECT_EQ(again.at("image_sha256").size(), 1U);
  EXPECT_TRUE(again.contains("engine"));
  fs::copy(directory_ / "root" / "example.png", path("elsewhere.png"));
  again["image"] = path("elsewhere.png").string();
  make(again, "again.mp4");
  EXPECT_TRUE(same_bytes(path("first.mp4"), path("again.mp4")));

  directory_.write("elsewhere.png", bytes_of(path("root/example.png")) + "x");
  Progress progress;
  const auto tasks = make_variants(1, {again, path("third.mp4"), {}}, root().defaults());
  const CheckpointRoot checkpoint = root();
  EXPECT_NE(generate(checkpoint, tasks, progress, {test_device()}).at(0).error.find("another picture"),
            std::string::npos);
  EXPECT_FALSE(fs::exists(path("third.mp4")));
}

TEST_F(Generate, TitlesEndBetweenCharacters) {
  std::string prompt = "x";
  for (int i = 0; i < 60; ++i) prompt += "\xe7\x8b\x90";  // three bytes each: 80 is inside one
  make(small({{"prompt", prompt}}), "clip.mp4");
  EXPECT_EQ(probe_clip(path("clip.mp4")).metadata.at("title"), prompt.substr(0, 79));
}

TEST_F(Generate, InABatchAsAlone) {
  const Json refined = small({{"refine", "64x64"}, {"refiner_steps", 1}, {"seed", 44}});
  make(small({{"seed", 42}}), "alone0.mp4");
  make(small({{"seed", 43}, {"dtype", "f32"}}), "alone1.mp4");
  make(refined, "alone2.mp4");
  const Json entries{{{"output", "batch0.mp4"}},
                     {{"output", "batch1.mp4"}, {"dtype", "f32"}},
                     {{"output", "batch2.mp4"}, {"refine", "64x64"}, {"refiner_steps", 1}}};
  const fs::path file = directory_.write("batch.json", entries.dump(1));
  const CheckpointRoot checkpoint = root();
  Progress progress;
  const auto reports =
      generate(checkpoint, read_batch(file, {small(), path("clip.mp4"), {}}, checkpoint.defaults()), progress,
               {test_device()});
  for (int i = 0; i < 3; ++i) {
    EXPECT_EQ(reports.at(i).error, "");
    EXPECT_TRUE(same_bytes(path(fmt::format("alone{}.mp4", i)), path(fmt::format("batch{}.mp4", i)))) << i;
  }
}

TEST_F(Generate, VariantsCountSeedsUp) {
  const auto tasks = make_variants(3, {small({{"seed", 5}}), path("clip.mp4"), path("latents")}, {});
  ASSERT_EQ(tasks.size(), 3U);
  EXPECT_EQ(tasks[2].request.seed, 7U);
  EXPECT_EQ(tasks[2].output, path("clip-2.mp4"));
  EXPECT_EQ(tasks[2].latents_directory, path("latents/2"));
}

TEST_F(Generate, ATinyRootDependsOnItsSeedAlone) {
  write_tiny_root(path("same"), 1);
  write_tiny_root(path("other"), 2);
  int different = 0;
  for (const auto& entry : fs::recursive_directory_iterator(path("root"))) {
    if (!entry.is_regular_file()) continue;
    const fs::path name = entry.path().lexically_relative(path("root"));
    EXPECT_TRUE(same_bytes(entry.path(), path("same") / name)) << name;
    different += !same_bytes(entry.path(), path("other") / name);
  }
  EXPECT_EQ(different, 6);  // the six files of weights
  const Report one = make(small(), "one.mp4");
  const Report other = make({path("other"), std::nullopt}, small(), "other.mp4");
  EXPECT_NE(one.sha256.at("latents"), other.sha256.at("latents"));
}

TEST_F(Generate, MemoryFollowsTheLargestStage) {
#ifdef __SANITIZE_ADDRESS__
  GTEST_SKIP() << "the sanitizer's own memory counts as resident";
#endif
  if (tests_on_cuda()) GTEST_SKIP() << "resident memory says nothing about a GPU's";
  const CheckpointRoot checkpoint = root();
  std::map<std::string, std::size_t> weights;
  for (const PartInventory& part : take_inventory(checkpoint)) weights[part.name] = part.bytes;
  const std::map<std::string, std::string> part_of{{"images", "Wan autoencoder"}, {"text", "text encoder"},
                                                   {"preview", "preview"},        {"refiner", "refiner"},
                                                   {"audio", "audio decoder"},    {"video", "turbo decoder"}};
  make(small(), "warm.mp4");  // libraries and their buffers
  reset_peak_resident();
  const std::size_t base = peak_resident_bytes();
  const Report report = make(small({{"width", 192},
                                    {"height", 128},
                                    {"seconds", 2},
                                    {"image", picture()},
                                    {"refine", "320x192"},
                                    {"refiner_steps", 1}}),
                             "clip.mp4");
  constexpr std::size_t kFixed = 32u << 20;  // latents, frames on their way, the encoder, oneDNN's kernels
  for (const StageRecord& stage : report.stages) {
    // Stored weights may be twice as large in memory: bf16 in files, f32 for a model that computes so.
    const std::size_t own = 2 * weights.at(part_of.at(stage.name));
    const std::size_t bound = base + own + stage.peak_scratch_bytes * 3 / 2 + kFixed;
    std::printf("%-8s peak %6.1f MB: base %.1f, weights %.1f, scratch %.1f; bound %.1f MB\n",
                stage.name.c_str(), stage.peak_bytes / 1e6, base / 1e6, own / 2e6,
                stage.peak_scratch_bytes / 1e6, bound / 1e6);
    EXPECT_LE(stage.peak_bytes, bound) << stage.name;
  }
}

}  // namespace
}  // namespace magi
