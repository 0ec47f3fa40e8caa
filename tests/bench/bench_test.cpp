// SPDX-License-Identifier: Apache-2.0
#include "bench/bench.h"

#include <gtest/gtest.h>

#include <cmath>
#include <fstream>
#include <nlohmann/json.hpp>

#include "bench/random_store.h"
#include "support/expect_error.h"
#include "support/temp_dir.h"

namespace magi {
namespace {

nlohmann::json tiny_config() {
  return {{"arch_config",
           {{"num_layers", 4},
            {"hidden_size", 128},
            {"head_dim", 32},
            {"num_query_groups", 4},
            {"text_in_channels", 64},
            {"mm_layers", {0, 3}},
            {"moe_config",
             {{"num_experts", 8},
              {"top_k", 3},
              {"num_heads", 4},
              {"moe_layers", {1, 2}},
              {"expert_intermediate_size", 48},
              {"shared_expert_intermediate_size", 48},
              {"modality_specific_expert_intermediate_size", 32}}}}},
          {"magi2_refiner_arch_config",
           {{"num_layers", 2},
            {"hidden_size", 128},
            {"head_dim", 32},
            {"num_query_groups", 2},
            {"text_in_channels", 64},
            {"mm_layers", {0}}}}};
}

nlohmann::json tiny_text_config() {
  return {{"num_hidden_layers", 6},
          {"hidden_size", 64},
          {"intermediate_size", 96},
          {"vocab_size", 100},
          {"num_attention_heads", 4},
          {"num_key_value_heads", 2},
          {"head_dim", 16},
          {"linear_num_key_heads", 2},
          {"linear_num_value_heads", 4},
          {"linear_key_head_dim", 16},
          {"linear_value_head_dim", 16}};
}

BenchOptions tiny(BenchModel model = BenchModel::preview) {
  BenchOptions o;
  o.model = model;
  o.config = ConfigNode(model == BenchModel::text ? tiny_text_config() : tiny_config(), "tiny");
  o.width = 64;
  o.height = 48;
  o.seconds = 1;
  o.text_tokens = 20;
  o.steps = 3;
  return o;
}

BenchResult run(const BenchOptions& o) {
  Progress progress;
  return run_bench(o, progress);
}

nlohmann::json read(const std::filesystem::path& file) {
  std::ifstream in(file);
  return nlohmann::json::parse(in);
}

TEST(Bench, JsonSaysWhatRanAndHowLong) {
  BenchOptions o = tiny();
  o.operations = true;
  const TempDir dir;
  const BenchResult result = run(o);
  write_json(o, result, dir.path() / "bench.json");
  const nlohmann::json j = read(dir.path() / "bench.json");
  EXPECT_EQ(j.at("model"), "preview");
  EXPECT_EQ(j.at("device"), "cpu");
  EXPECT_EQ(j.at("dtype"), "bf16");
  EXPECT_EQ(j.at("distinct_layers"), 1);
  EXPECT_NE(j.at("weights").get<std::string>().find("shared"), std::string::npos);
  EXPECT_EQ(j.at("dropped_steps"), 2);
  EXPECT_EQ(j.at("step_seconds").size(), 3u);
  EXPECT_EQ(j.at("mean_seconds"), j.at("step_seconds").at(2));
  EXPECT_EQ(j.at("median_seconds"), j.at("step_seconds").at(2));
  // One second: 25 audio latents, 4 video latents of 3×4 cells; 20 and 15 text tokens.
  EXPECT_EQ(j.at("sizes").at("rows"), nlohmann::json({48 + 25 + 20, 48 + 25 + 15}));
  EXPECT_EQ(j.at("digest").get<std::string>().size(), 6u + 16u);
  const nlohmann::json& first = j.at("operations").at(0);
  EXPECT_GT(first.at("median_ms"), 0);
  EXPECT_TRUE(first.contains("tflops") && first.contains("gb_per_s"));
  EXPECT_GT(j.at("scratch_bytes"), 0);
}

TEST(Bench, SharesOfOperationsAddUp) {
  BenchOptions o = tiny();
  o.operations = true;
  const BenchResult result = run(o);
  double share = 0, flops = 0;
  std::int64_t experts = 0, attention = 0;
  for (const OpTotal& t : totals_by_operation(*result.profile)) {
    share += t.share;
    flops += t.flops;
    if (t.name == "experts") experts = t.count;
    if (t.name == "attention") attention = t.count;
    EXPECT_GE(t.milliseconds, 0) << t.name;
  }
  EXPECT_NEAR(share, 1, 1e-9);
  EXPECT_GT(flops, 1e6);
  EXPECT_EQ(experts, 2);
  EXPECT_EQ(attention, 4);
  std::int64_t calls = 0;
  for (const OpTotal& t : totals_by_cost(*result.profile)) calls += t.count;
  EXPECT_EQ(calls, static_cast<std::int64_t>(result.profile->spans.size()));
  EXPECT_NE(to_text(o, result).find("experts"), std::string::npos);
}

TEST(Bench, TraceHasTheStepsOperationsInOrder) {
  BenchOptions o = tiny();
  const TempDir dir;
  o.trace = dir.path() / "trace.json";
  const BenchResult result = run(o);
  const nlohmann::json trace = read(*o.trace);
  double end = 0;
  std::size_t operations = 0;
  for (const nlohmann::json& event : trace.at("traceEvents")) {
    if (event.at("ph") != "X") continue;
    ++operations;
    EXPECT_GE(event.at("ts").get<double>(), end - 1e-3);
    end = event.at("ts").get<double>() + event.at("dur").get<double>();
    EXPECT_TRUE(event.at("args").contains("flops") && event.at("args").contains("bytes"));
  }
  EXPECT_EQ(operations, result.profile->spans.size());
  EXPECT_LE(end, 1e3 * result.profile->milliseconds + 1e-3);
}

TEST(Bench, SameResultAgainAndAnotherForOtherWeights) {
  BenchOptions o = tiny();
  const std::string first = run(o).digest;
  o.operations = true;  // looking on changes nothing
  EXPECT_EQ(run(o).digest, first);
  o.distinct = 2;
  EXPECT_NE(run(o).digest, first);
}

TEST(Bench, Nvfp4ExpertsAreDrawnInTheSizeOfOthers) {
  RandomStore store;
  const Nvfp4Layout layout{3, 96, 160};
  store.add_nvfp4("packed", 2, layout);
  const Tensor packed = store.load("packed");
  const PlainExperts plain = dequantize_experts(static_cast<const std::byte*>(packed.raw()), 6, layout);
  for (const auto& [t, depth] : {std::pair(plain.gate, 96.0), {plain.up, 96.0}, {plain.down, 160.0}}) {
    double mean = 0, square = 0;
    const Tensor f = t.to(DType::f32);
    for (const float v : f.values<float>()) mean += v, square += static_cast<double>(v) * v;
    const double n = static_cast<double>(f.numel()), ratio = std::sqrt(square / n * depth);
    EXPECT_LT(std::abs(mean / n) * std::sqrt(depth), 0.05);
    EXPECT_TRUE(ratio > 0.65 && ratio < 1.55) << ratio;
  }
  BenchOptions o = tiny();
  const std::string numbers = run(o).digest;
  o.experts = ExpertFormat::nvfp4;
  const BenchResult result = run(o);
  EXPECT_NE(result.digest, numbers);
  EXPECT_EQ(to_json(o, result).at("experts"), "nvfp4");
}

TEST(Bench, RunsTheOtherModels) {
  for (const BenchModel model : {BenchModel::refiner, BenchModel::text}) {
    BenchOptions o = tiny(model);
    o.dtype = DType::f32;
    const BenchResult result = run(o);
    EXPECT_EQ(result.seconds.size(), 3u) << name_of(model);
    EXPECT_NE(result.digest, "") << name_of(model);
  }
}

TEST(Bench, PresetsAreTheReleases) {
  BenchOptions o;
  ClipSize clip = clip_size(o);
  EXPECT_EQ(std::tuple(clip.width, clip.height, clip.latents, clip.audio_latents),
            std::tuple(448, 256, 32, 250));
  o.preset = "1080p";
  EXPECT_EQ(clip_size(o).width, 896);
  o.model = BenchModel::refiner;
  clip = clip_size(o);
  EXPECT_EQ(std::tuple(clip.width, clip.height, clip.latents), std::tuple(1920, 1088, 63));
}

TEST(Bench, BadOptionsAreErrors) {
  expect_error([] { bench_model("video"); }, "preview, refiner");
  BenchOptions o = tiny();
  o.steps = 2;
  expect_error([&] { run(o); }, "2 steps, expected 3");
  o = tiny();
  o.width = 100;
  expect_error([&] { run(o); }, "100x48");
  o = tiny();
  o.trace = "/nowhere/trace.json";
  expect_error([&] { run(o); }, "/nowhere");
  o = tiny();
  o.preset = "4k";
  expect_error([&] { run(o); }, "\"4k\"; choose 272p");
}

TEST(RandomStore, ValuesDependOnTheNameAndKeepTheirSpread) {
  const RandomStore store;
  const Shape shape{300, 257};
  const Tensor a = store.get("a.weight", shape).to(DType::f32),
               again = store.get("a.weight", shape).to(DType::f32),
               b = store.get("b.weight", shape).to(DType::f32);
  EXPECT_TRUE(std::equal(a.values<float>().begin(), a.values<float>().end(), again.values<float>().begin()));
  double sum = 0, squares = 0, product = 0;
  for (std::int64_t i = 0; i < a.numel(); ++i) {
    const double x = a.data<float>()[i], y = b.data<float>()[i];
    sum += x, squares += x * x, product += x * y;
  }
  const auto n = static_cast<double>(a.numel());
  const double deviation = 1 / std::sqrt(257.0);
  EXPECT_NEAR(sum / n, 0, 5 * deviation / std::sqrt(n));
  EXPECT_NEAR(std::sqrt(squares / n), deviation, 0.02 * deviation);
  EXPECT_NEAR(product / n, 0, 5 * deviation * deviation / std::sqrt(n));
}

}  // namespace
}  // namespace magi
