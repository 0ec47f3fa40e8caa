// SPDX-License-Identifier: Apache-2.0
// Budgets: what is planned fits, what is made within them is the same clip, and nobody passes them.
#include "run/memory_plan.h"

#include <gtest/gtest.h>

#include <fstream>
#include <functional>
#include <nlohmann/json.hpp>

#include "core/memory_ledger.h"
#include "run/generate.h"
#include "run/tiny_root.h"
#include "support/expect_error.h"
#include "support/temp_dir.h"

namespace magi {
namespace {

namespace fs = std::filesystem;

constexpr std::size_t kGiB = std::size_t{1} << 30;
constexpr Device kGpu{Device::Kind::cuda, 0};

Request release_request(const std::string& preset) {
  return Request::from_json({{"prompt", "x"}, {"preset", preset}}, CheckpointRoot::release().defaults(),
                            "test");
}

StageMemory release_preview(const std::string& preset, ExpertFormat experts = ExpertFormat::nvfp4) {
  EngineOptions options;
  options.experts = experts;
  return stage_memory(Stage::preview, CheckpointRoot::release(), release_request(preset), {}, options);
}

TEST(StepTime, IsTheMeasuredOne) {
  const DeviceRates h200 = device_rates("NVIDIA H200", DType::bf16);
  for (const auto& [preset, seconds] : {std::pair{"272p", 1.07}, {"540p", 7.53}}) {
    const double predicted = predict_step(release_preview(preset, ExpertFormat::bf16).work, h200).seconds;
    std::printf("%s: predicted %.3f s, measured %.2f s\n", preset, predicted, seconds);
    EXPECT_NEAR(predicted, seconds, 0.07 * seconds) << preset;
  }
}

TEST(StepTime, StreamedLayersHideBehindLongSteps) {
  const DeviceRates h200 = device_rates("NVIDIA H200", DType::bf16);
  MemoryLimits limits{21 * kGiB, 100 * kGiB, true, false};
  for (const auto& [preset, slower] : {std::pair{"272p", 1.30}, {"540p", 1.05}}) {
    const StageMemory memory = release_preview(preset);
    const StagePlan plan = plan_stage(memory, limits, kGpu);
    EXPECT_LE(plan.device_bytes, limits.device);
    EXPECT_GT(plan.placement.count(Place::host), 20);
    const StepTime t = predict_step(memory.work, h200, plan.placement, memory.layer_bytes);
    std::printf("%s: %d layers resident, %.3f s a step, %.3f resident, %.3f of copies\n", preset,
                plan.placement.count(Place::device), t.seconds, t.compute_seconds, t.copy_seconds);
    EXPECT_LT(t.seconds, slower * t.compute_seconds) << preset;
    EXPECT_GE(t.seconds, t.compute_seconds * 0.999);
  }
}

TEST(StepTime, TheLinkBoundsWhatComputesFast) {
  DeviceRates rates = device_rates("NVIDIA H200", DType::bf16);
  rates.link_bytes = 1e9;
  StepWork work;
  work.product_flops = 1e12;
  const std::vector<std::size_t> layers(10, 1'000'000'000);
  const Placement p = place_layers("model", layers, {3'000'000'000, SIZE_MAX});
  EXPECT_NEAR(predict_step(work, rates, p, layers).seconds, 9, 0.1);
  EXPECT_NEAR(predict_step(work, rates, p, layers, 2).seconds, 18, 0.2);
}

TEST(PlanStage, TheReleaseOnSmallerAndSmallerCards) {
  const StageMemory memory = release_preview("540p");
  const auto plan = [&](std::size_t vram, std::size_t ram) {
    return plan_stage(memory, {vram * kGiB, ram * kGiB, true, true}, kGpu, 2 * kGiB);
  };
  EXPECT_FALSE(plan(90, 1).placement.streams());
  const StagePlan from_host = plan(21, 100), from_disk = plan(21, 32);
  EXPECT_EQ(from_host.read_bytes, 0U);
  EXPECT_GT(from_disk.read_bytes, 0U);
  EXPECT_LE(from_disk.host_bytes, 32 * kGiB);
  EXPECT_LE(from_disk.device_bytes, 21 * kGiB);
  expect_error([&] { plan(8, 100); }, "allow more with --vram");
  expect_error([&] { plan(21, 2); }, "--ram");
}

/// Does something when the first denoising step is over.
class AfterAStep final : public Progress {
 public:
  explicit AfterAStep(std::function<void(Progress&)> act) : act_(std::move(act)) {}
  void stage(std::string_view name, std::int64_t) override { denoising_ = name == "denoise"; }
  void advance(std::int64_t done) override {
    if (denoising_ && done == 1) act_(*this);
  }

 private:
  std::function<void(Progress&)> act_;
  bool denoising_ = false;
};

class Budgets : public testing::Test {
 protected:
  Budgets() { write_tiny_root(directory_ / "root", 1); }

  CheckpointRoot root() const { return {directory_ / "root", std::nullopt}; }
  Request request(const std::string& dtype = "bf16") const {
    return Request::from_json({{"prompt", "A fox."},
                               {"width", 64},
                               {"height", 64},
                               {"seconds", 0.4},
                               {"steps", 3},
                               {"refine", "64x64"},
                               {"refiner_steps", 1},
                               {"dtype", dtype}},
                              root().defaults(), "test");
  }
  /// A budget that leaves the preview `layers` bytes for its layers that stay.
  EngineOptions tight(const Request& r, std::size_t layers = 0) const {
    std::size_t needed = 0;
    for (const Stage stage : {Stage::text, Stage::preview, Stage::refiner})
      needed = std::max(
          needed, stage_memory(stage, root(), r, {}, {}).least_bytes() + largest_stored_layer(stage, root()));
    for (const Stage stage : {Stage::audio, Stage::video})
      needed = std::max(needed, stage_memory(stage, root(), r, {}, {}).bytes());
    EngineOptions probe;
    probe.ram_bytes = 64 * kGiB;  // what the process itself takes
    const std::size_t base = *probe.ram_bytes - memory_limits(probe).host;
    probe.ram_bytes = base + (std::size_t{65} << 20) + needed + layers + MemoryLedger::of({}).used_bytes();
    return probe;
  }
  Report make(const Request& r, const EngineOptions& options, Progress& progress, const char* name) const {
    return generate(root(), {{r, directory_ / name, {}, "", ""}}, progress, options).at(0);
  }

  TempDir directory_;
};

TEST_F(Budgets, TheSameClipWithinThem) {
  for (const std::string dtype : {"f32", "bf16"}) {
    Progress progress;
    const Request r = request(dtype);
    const Report resident = make(r, {}, progress, "resident.mp4");
    ASSERT_EQ(resident.error, "");
    const EngineOptions options = tight(r);
    const StagePlan plan = plan_memory(root(), r, options).stages.at(1);
    EXPECT_GT(plan.read_bytes, 0U) << "the budget does not force streaming";
    MemoryLedger& host = MemoryLedger::of({});
    host.reset_peak();
    const Report streamed = make(r, options, progress, "streamed.mp4");
    ASSERT_EQ(streamed.error, "");
    EXPECT_EQ(streamed.sha256, resident.sha256) << dtype;
    EXPECT_LE(host.peak_bytes(), *options.ram_bytes);
    EXPECT_EQ(host.limit_bytes(), MemoryLedger::kNoLimit) << "the limit outlives the engine";
  }
}

TEST_F(Budgets, TooSmallOnesAreOneError) {
  Progress progress;
  EngineOptions options = tight(request());
  options.ram_bytes = *options.ram_bytes - (std::size_t{65} << 20);
  const Report report = make(request(), options, progress, "clip.mp4");
  EXPECT_NE(report.error.find("allow more with --ram"), std::string::npos) << report.error;
  EXPECT_FALSE(fs::exists(directory_ / "clip.mp4"));
}

TEST_F(Budgets, AFileCutShortInTheMiddleIsOneError) {
  AfterAStep cut([&](Progress&) {
    for (const auto& entry : fs::directory_iterator(directory_ / "root" / "preview"))
      if (entry.path().extension() == ".safetensors") fs::resize_file(entry.path(), 4096);
  });
  const Report report = make(request(), tight(request()), cut, "clip.mp4");
  EXPECT_NE(report.error.find("cut short, or changed while in use"), std::string::npos) << report.error;
  EXPECT_FALSE(fs::exists(directory_ / "clip.mp4"));
}

TEST_F(Budgets, CancelledInTheMiddle) {
  AfterAStep cancel([](Progress& progress) { progress.cancel(); });
  const std::size_t before = MemoryLedger::of({}).used_bytes();
  EXPECT_THROW(make(request(), tight(request()), cancel, "clip.mp4"), Cancelled);
  EXPECT_FALSE(fs::exists(directory_ / "clip.mp4"));
  EXPECT_EQ(MemoryLedger::of({}).used_bytes(), before) << "something leaked";
}

}  // namespace
}  // namespace magi
