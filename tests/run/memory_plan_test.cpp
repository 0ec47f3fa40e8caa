// SPDX-License-Identifier: Apache-2.0
// Budgets: what is planned fits, what is made within them is the same clip, and nobody passes them.
#include "run/memory_plan.h"

#include <gtest/gtest.h>

#include <fstream>
#include <functional>
#include <nlohmann/json.hpp>

#include "core/memory_ledger.h"
#include "run/pipeline.h"
#include "run/tiny_root.h"
#include "support/expect_error.h"
#include "support/temp_dir.h"

namespace magi {
namespace {

namespace fs = std::filesystem;

constexpr std::size_t kMiB = std::size_t{1} << 20, kGiB = std::size_t{1} << 30;
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

Tensor some(Shape shape) {
  Tensor t = Tensor::empty(DType::f32, std::move(shape));
  std::uint32_t seed = 1;
  for (float& v : t.values<float>()) {
    seed = seed * 1664525u + 1013904223u;
    v = static_cast<float>(seed >> 8) * 0x1p-23f - 1.0f;
  }
  return t;
}

/// The preview of a tiny root within a budget that leaves it room for two layers and what it computes in.
class Budgets : public testing::Test {
 protected:
  Budgets() : root_((write_tiny_root(directory_ / "root", 1), directory_ / "root"), std::nullopt) {}

  Request request(const std::string& dtype = "bf16") const {
    return Request::from_json({{"prompt", "A fox."},
                               {"width", 64},
                               {"height", 64},
                               {"seconds", 0.4},
                               {"steps", 3},
                               {"dtype", dtype}},
                              root_.defaults(), "test");
  }
  StageMemory memory(const Request& r) const {
    return stage_memory(Stage::preview, root_, r, {7, 3, {}}, {});
  }
  EngineOptions tight(const Request& r) const {
    EngineOptions options;
    options.ram_bytes = 64 * kGiB;
    const std::size_t base = *options.ram_bytes - memory_limits(options).host;  // of the process itself
    options.ram_bytes = base + MemoryLedger::of({}).used_bytes() + memory(r).least_bytes() +
                        largest_stored_layer(Stage::preview, root_) + 65 * kMiB;
    return options;
  }
  std::string denoise(const Request& r, const EngineOptions& options, Progress& progress) const {
    const std::int64_t width = PreviewConfig::from(root_.config()).channels.text;
    Pipeline pipeline(root_, progress, options);
    SampleState start;
    start.latents = {some({48, 2, 4, 4}), some({10, 64})};
    const Latents end = pipeline.denoise(r, {some({7, width}), some({3, width}), {}}, {}, start);
    std::string bytes(static_cast<const char*>(end.video.raw()), end.video.bytes());
    return bytes.append(static_cast<const char*>(end.audio.raw()), end.audio.bytes());
  }

  TempDir directory_;
  CheckpointRoot root_;
  MemoryLedger& host_ = MemoryLedger::of({});
};

TEST_F(Budgets, TheSameBytesWithinThem) {
  for (const std::string dtype : {"f32", "bf16"}) {
    Progress progress;
    const Request r = request(dtype);
    const std::size_t before = host_.used_bytes();
    host_.reset_peak();
    const std::string resident = denoise(r, {}, progress);
    const std::size_t resident_peak = host_.peak_bytes() - before;
    const EngineOptions options = tight(r);
    const StagePlan plan =
        plan_stage(memory(r), {0, memory_limits(options).host - host_.used_bytes(), false, true}, {},
                   largest_stored_layer(Stage::preview, root_));
    EXPECT_GT(plan.read_bytes, 0U) << "the budget does not force streaming";
    host_.reset_peak();
    EXPECT_TRUE(denoise(r, options, progress) == resident) << dtype;
    const std::size_t peak = host_.peak_bytes() - before;
    std::printf("%s: at most %.2f MiB of tensors, planned %.2f, resident %.2f\n", dtype.c_str(),
                static_cast<double>(peak) / kMiB, static_cast<double>(plan.host_bytes) / kMiB,
                static_cast<double>(resident_peak) / kMiB);
    EXPECT_LE(peak, plan.host_bytes + kMiB);
    EXPECT_LE(host_.peak_bytes(), memory_limits(options).host);
    EXPECT_EQ(host_.limit_bytes(), MemoryLedger::kNoLimit) << "the limit outlives the engine";
  }
}

TEST_F(Budgets, TooSmallOnesAreOneError) {
  Progress progress;
  EngineOptions options = tight(request());
  options.ram_bytes = *options.ram_bytes - 65 * kMiB;
  expect_error([&] { denoise(request(), options, progress); }, "allow more with --ram");
}

TEST_F(Budgets, APlanTellsWhichStagesDoNotFit) {
  EngineOptions options;
  options.ram_bytes = kMiB;
  const MemoryPlan plan = plan_memory(root_, request(), options);
  EXPECT_TRUE(plan.stages.empty());
  ASSERT_EQ(plan.impossible.size(), 4U);
  const std::string text = to_text(plan);
  EXPECT_NE(text.find("\ndoes not fit: preview: "), std::string::npos) << text;
  EXPECT_NE(text.find(" MiB are needed beside"), std::string::npos) << text;
  EXPECT_EQ(text.find(" of computing in all"), std::string::npos) << text;
}

TEST_F(Budgets, AFileCutShortInTheMiddleIsOneError) {
  AfterAStep cut([&](Progress&) {
    for (const auto& entry : fs::directory_iterator(directory_ / "root" / "preview"))
      if (entry.path().extension() == ".safetensors") fs::resize_file(entry.path(), 4096);
  });
  expect_error([&] { denoise(request(), tight(request()), cut); }, "cut short, or changed while in use");
}

TEST_F(Budgets, CancelledInTheMiddle) {
  AfterAStep cancel([](Progress& progress) { progress.cancel(); });
  const std::size_t before = host_.used_bytes();
  EXPECT_THROW(denoise(request(), tight(request()), cancel), Cancelled);
  EXPECT_EQ(host_.used_bytes(), before) << "something leaked";
}

}  // namespace
}  // namespace magi
