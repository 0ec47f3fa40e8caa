// SPDX-License-Identifier: Apache-2.0
#include "io/checkpoint.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "io/config.h"
#include "io/finite.h"
#include "io/safetensors.h"
#include "support/expect_error.h"
#include "support/golden.h"
#include "support/temp_dir.h"

namespace magi {
namespace {

Tensor ones(Shape shape) {
  Tensor t = Tensor::empty(DType::f32, std::move(shape));
  std::ranges::fill(t.values<float>(), 1.0f);
  return t;
}

void write_two_shards(const TempDir& dir, const std::string& index_name = "model.safetensors.index.json") {
  write_safetensors(dir / "a.safetensors", {{"x", ones({2})}, {"extra", ones({1})}});
  write_safetensors(dir / "b.safetensors", {{"y", ones({3})}});
  dir.write(index_name, R"({"weight_map": {"x": "a.safetensors", "y": "b.safetensors"}})");
}

TEST(Checkpoint, OpensShardsByTheirIndex) {
  const TempDir dir;
  write_two_shards(dir, "diffusion.safetensors.index.json");
  const auto store = open_checkpoint(dir.path());
  EXPECT_EQ(store->entries().size(), 2u);  // what the index does not name is not part of the checkpoint
  EXPECT_EQ(store->get("y", {3}).numel(), 3);
  EXPECT_EQ(store->unused(), std::vector<std::string>{"x"});
  EXPECT_TRUE(store->unused({"x"}).empty());
}

TEST(Checkpoint, NamesMissingShardsAndTensors) {
  const TempDir dir;
  write_two_shards(dir);
  std::filesystem::remove(dir / "b.safetensors");
  expect_error([&] { open_checkpoint(dir.path()); }, "1 of 2 shards are missing: b.safetensors");
  write_safetensors(dir / "b.safetensors", {{"z", ones({3})}});
  expect_error([&] { open_checkpoint(dir.path()); }, "b.safetensors: tensor y is missing");
}

TEST(Checkpoint, RefusesBadIndexes) {
  const auto refused = [](const std::string& index, std::string_view part) {
    const TempDir dir;
    dir.write("model.safetensors.index.json", index);
    expect_error([&] { open_checkpoint(dir.path()); }, part);
  };
  refused("", "not valid JSON");
  refused("{}", "no weight_map");
  refused(R"({"weight_map": [1]})", "no weight_map");
  refused(R"({"weight_map": {"x": 1}})", "plain file name");
  refused(R"({"weight_map": {"x": ""}})", "plain file name");
  refused(R"({"weight_map": {"x": "../a.safetensors"}})", "plain file name");
  refused(R"({"weight_map": {"x": "/etc/passwd"}})", "plain file name");
  refused(R"({"weight_map": {"x": ".."}})", "not a regular file");
}

TEST(Checkpoint, ChoosesFilesOfADirectory) {
  const TempDir dir;
  expect_error([&] { open_checkpoint(dir.path()); },
               "neither model.safetensors.index.json nor model.safetensors");
  write_safetensors(dir / "one.safetensors", {{"x", ones({2})}});
  EXPECT_TRUE(open_checkpoint(dir.path())->has("x"));
  write_safetensors(dir / "two.safetensors", {{"y", ones({2})}});
  expect_error([&] { open_checkpoint(dir.path()); }, "2 files *.safetensors");
  write_safetensors(dir / "model.safetensors", {{"z", ones({2})}});
  EXPECT_TRUE(open_checkpoint(dir.path())->has("z"));
  EXPECT_TRUE(open_checkpoint(dir / "two.safetensors")->has("y"));
  expect_error([&] { open_checkpoint(dir / "none"); }, "no such checkpoint");
  expect_error([&] { open_checkpoint(dir.write("x.bin", "")); }, "a checkpoint is a directory");
  expect_error([&] { open_checkpoint(dir.write("x.ckpt", "")); }, "not a zip archive");
  expect_error([&] { open_checkpoint("/dev/null"); }, "a checkpoint is a directory");
}

TEST(TensorStore, GetNamesFileTensorFoundAndExpected) {
  const auto store = tensor_store_of(
      "preview/model.safetensors",
      {{"a.W_up", Tensor::zeros(DType::f16, {3, 2})}, {"ids", Tensor::zeros(DType::i32, {2})}});
  EXPECT_EQ(store->get("a.W_up", {3, 2}).dtype(), DType::f16);
  expect_error(
      [&] {
        store->get("a.W_up", {3, 4});
      },
      "preview/model.safetensors: a.W_up is F16 [3,2], expected [3,4]");
  expect_error([&] { store->get("b", {3, 4}); }, "preview/model.safetensors: tensor b is missing");
  expect_error([&] { store->get("ids", {2}); }, "ids is I32 [2], expected F32, F16 or BF16");
  EXPECT_EQ(store->load("ids").dtype(), DType::i32);
}

// Every position, so that vector bodies, tails and thread borders are all met.
TEST(Finite, FindsTheFirstBadValueWhereverItIs) {
  for (const DType dtype : {DType::f32, DType::bf16, DType::f64}) {
    const std::int64_t count = 2'000'003;
    Tensor t = Tensor::zeros(dtype, {count});
    EXPECT_EQ(first_non_finite(t), -1);
    const auto poke = [&](std::int64_t at, float value) {
      if (dtype == DType::f32) t.data<float>()[at] = value;
      if (dtype == DType::bf16) t.data<bf16>()[at] = bf16(value);
      if (dtype == DType::f64) t.data<double>()[at] = value;
    };
    for (const std::int64_t at : {count - 1, std::int64_t{1'500'000}, std::int64_t{131'072},
                                  std::int64_t{131'071}, std::int64_t{1}, std::int64_t{0}}) {
      poke(at, at % 2 ? -INFINITY : NAN);
      EXPECT_EQ(first_non_finite(t), at);
    }
    std::memset(t.raw(), 0, t.bytes());
    poke(7, 3e38f);
    EXPECT_EQ(first_non_finite(t), -1);
  }
  EXPECT_EQ(first_non_finite(Tensor::empty(DType::f32, {0})), -1);
}

std::vector<std::string> golden_parts() {
  return {"preview",
          "refiner",
          "text_encoder",
          "stable-audio-open-1.0",
          "vae/Wan2.2_VAE.pth",
          "turbo_vae/checkpoint.ckpt"};
}

TEST(GoldenCheckpoint, ReadsEveryTensorOfTheModelRoot) {
  int opened = 0;
  for (const std::string& part : golden_parts()) {
    if (!std::filesystem::exists(golden_model(part))) continue;
    const auto store = open_checkpoint(golden_model(part));
    std::size_t bytes = 0, floats = 0;
    for (const auto& [name, info] : store->entries()) {
      const Tensor tensor = store->load(name);
      EXPECT_EQ(tensor.shape(), info.shape) << name;
      EXPECT_EQ(tensor.bytes(), info.bytes) << name;
      const bool is_float = info.stored_as.ends_with("F16") || info.stored_as == "F32";
      if (is_float) {
        EXPECT_EQ(store->get(name, info.shape).dtype(), tensor.dtype());
      }
      floats += is_float;
      bytes += info.bytes;
    }
    EXPECT_TRUE(store->unused().empty());
    std::printf("%s: %zu tensors, %zu of them floats, %zu bytes\n", part.c_str(), store->entries().size(),
                floats, bytes);
    EXPECT_GT(bytes, 0u) << part;
    ++opened;
  }
  if (opened == 0) GTEST_SKIP() << golden_model() << " holds no checkpoint";
}

/// Golden tensors written as safetensors and read back are the same bits, whichever format they came from.
TEST(GoldenCheckpoint, FormatsAgree) {
  const TempDir dir;
  int compared = 0;
  for (const std::string& part : golden_parts()) {
    if (!std::filesystem::exists(golden_model(part))) continue;
    const auto store = open_checkpoint(golden_model(part));
    std::vector<std::pair<std::string, Tensor>> tensors;
    for (const auto& [name, info] : store->entries()) tensors.emplace_back(name, store->load(name));
    write_safetensors(dir / "copy.safetensors", tensors);
    const auto copy = open_checkpoint(dir / "copy.safetensors");
    ASSERT_EQ(copy->entries().size(), tensors.size());
    for (const auto& [name, tensor] : tensors) {
      const Tensor again = copy->load(name);
      ASSERT_EQ(again.dtype(), tensor.dtype()) << name;
      ASSERT_EQ(again.shape(), tensor.shape()) << name;
      EXPECT_EQ(std::memcmp(again.raw(), tensor.raw(), tensor.bytes()), 0) << name;
      ++compared;
    }
  }
  std::printf("%d tensors equal after a round trip\n", compared);
  if (compared == 0) GTEST_SKIP() << golden_model() << " holds no checkpoint";
}

// Names and shapes that do not depend on sizes tell whether the PyTorch files were understood: the latent
// channels of the configuration are an axis of both decoders' first convolutions.
TEST(GoldenCheckpoint, PyTorchFilesHoldWhatTheirConfigurationSays) {
  const auto turbo = golden_model("turbo_vae");
  if (!std::filesystem::exists(turbo / "checkpoint.ckpt")) GTEST_SKIP() << turbo << " missing";
  std::int64_t latent_channels = 0;
  for (const auto& file : std::filesystem::directory_iterator(turbo))
    if (file.path().extension() == ".json")
      latent_channels = ConfigNode::read(file.path()).integer("latent_channels", std::nullopt, 1, 10000);
  const auto store = open_checkpoint(turbo / "checkpoint.ckpt");
  ASSERT_TRUE(store->has("decoder.conv_in.conv.weight"));
  EXPECT_EQ(store->entries().at("decoder.conv_in.conv.weight").shape.at(1), latent_channels);
  for (const auto& [name, info] : store->entries()) EXPECT_FALSE(name.starts_with("module.")) << name;
}

TEST(Checkpoint, ManyAndImpossibleShardNamesMakeAShortMessage) {
  const TempDir dir;
  std::string map = "\"t\": \"" + std::string(5000, 'x') + "\"";
  for (int i = 0; i < 1000; ++i) map += fmt::format(", \"t{}\": \"shard-{}.safetensors\"", i, i);
  dir.write("model.safetensors.index.json", "{\"weight_map\": {" + map + "}}");
  try {
    open_checkpoint(dir.path());
    FAIL() << "opened";
  } catch (const Error& e) {
    EXPECT_NE(std::string(e.what()).find("1001 of 1001 shards are missing"), std::string::npos) << e.what();
    EXPECT_LT(std::string(e.what()).size(), 2000u);
  }
}

}  // namespace
}  // namespace magi
