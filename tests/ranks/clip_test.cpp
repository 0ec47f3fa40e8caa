// SPDX-License-Identifier: Apache-2.0
// Whole clips over ranks: files and latents have the bytes of one rank's, refined ones too.
#include <gtest/gtest.h>

#include <cstdio>
#include <nlohmann/json.hpp>

#include "ranks/ranks_testing.h"
#include "run/batch.h"
#include "run/generate.h"
#include "run/tiny_root.h"
#include "support/file_bytes.h"
#include "support/golden.h"
#include "support/temp_dir.h"

namespace magi {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::json;

/// Rank 0's directory, which all ranks know.
class Clips : public testing::Test {
 protected:
  Clips() : directory_(world().host().broadcast(own_.path().string(), 0)) {
    if (world().rank() == 0) write_tiny_root(directory_ / "root", 1);
    world().host().barrier();
  }
  ~Clips() override { world().host().barrier(); }

  CheckpointRoot tiny_root() const { return {directory_ / "root", std::nullopt}; }

  static Json small(const Json& changes) {
    Json request{{"prompt", "A fox."}, {"width", 64}, {"height", 64}, {"seconds", 0.4}, {"steps", 2}};
    request.update(changes);
    return request;
  }

  /// Rank 0: made by itself, or by all ranks, which follow. Elsewhere an empty report.
  Report make(const CheckpointRoot& root, const Json& request, const std::string& name,
              const EngineOptions& engine) const {
    if (world().rank() > 0) {
      if (engine.world) follow(root, engine);
      return {};
    }
    Progress progress;
    const auto tasks = make_variants(
        1, {request, directory_ / (name + ".mp4"), directory_ / (name + "_latents")}, root.defaults());
    Report report = generate(root, tasks, progress, engine).at(0);
    EXPECT_EQ(report.error, "");
    return report;
  }

  void expect_same_with_any_degrees(const CheckpointRoot& root, const Json& request) const {
    const Report alone = make(root, request, "alone", {rank_device()});
    for (const Degrees& degrees : possible_degrees(world().size())) {
      if (degrees.ep != world().size()) continue;
      EngineOptions engine{rank_device()};
      engine.world = {std::shared_ptr<void>(), &world()};
      engine.degrees = degrees;
      const Report together = make(root, request, "together", engine);
      if (world().rank() > 0) continue;
      EXPECT_EQ(together.sha256, alone.sha256) << "sp " << degrees.sp << " cfg " << degrees.cfg;
      for (const char* file : {".mp4", "_latents/latents.safetensors"})
        EXPECT_TRUE(bytes_of(directory_ / ("together" + std::string(file))) ==
                    bytes_of(directory_ / ("alone" + std::string(file))))
            << file << ", sp " << degrees.sp << " cfg " << degrees.cfg;
      EXPECT_EQ(together.ranks.size(), static_cast<std::size_t>(world().size()));
      double tokens = 0;
      for (const RankRecord& rank : together.ranks) {
        EXPECT_GT(rank.bytes_sent, 0);
        tokens += rank.refiner_tokens_share;
      }
      EXPECT_NEAR(tokens, request.contains("refine") ? 1 : world().size(), 1e-9);
    }
  }

  TempDir own_;
  fs::path directory_;
};

TEST_F(Clips, RefinedAsOneRankMakesThem) {
  for (const std::string dtype : {"bf16", "f32"})
    expect_same_with_any_degrees(tiny_root(),
                                 small({{"dtype", dtype}, {"refine", "96x64"}, {"refiner_steps", 2}}));
}

TEST_F(Clips, RefinedFromAPictureAsOneRankMakesThem) {
  expect_same_with_any_degrees(tiny_root(), small({{"image", (directory_ / "root/example.png").string()},
                                                   {"refine", "160x96"},
                                                   {"seconds", 0.8},
                                                   {"refiner_steps", 1}}));
}

TEST_F(Clips, OfOneLatentFrameAndWithoutSound) {
  expect_same_with_any_degrees(
      tiny_root(), small({{"seconds", 0.2}, {"audio", false}, {"refine", "64x64"}, {"refiner_steps", 1}}));
}

TEST_F(Clips, ByTheWanDecoder) {
  expect_same_with_any_degrees(tiny_root(), small({{"vae", "wan"}}));
}

/// The golden model's own refined clip.
TEST_F(Clips, GoldenRefined) {
  GOLDEN_CASE(c, "e2e_t2v");
  Size preview;
  ASSERT_EQ(std::sscanf(c.meta("preview").c_str(), "%ldx%ld", &preview.width, &preview.height), 2);
  expect_same_with_any_degrees({golden_model(), std::nullopt}, {{"prompt", "A fox."},
                                                                {"width", preview.width},
                                                                {"height", preview.height},
                                                                {"steps", 1},
                                                                {"refiner_steps", 1},
                                                                {"seconds", std::stod(c.meta("seconds"))},
                                                                {"dtype", "f32"},
                                                                {"refine", c.meta("refiner")}});
}

}  // namespace
}  // namespace magi
