// SPDX-License-Identifier: Apache-2.0
// Native roots: what they compute, interruptions, damage, hostile files, memory.
#include "run/quantize.h"

#include <gtest/gtest.h>
#include <omp.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <cstring>
#include <fstream>
#include <nlohmann/json.hpp>
#include <random>

#include "io/checkpoint.h"
#include "io/native_manifest.h"
#include "model/nvfp4_store.h"
#include "run/batch.h"
#include "run/inventory.h"
#include "run/report.h"
#include "run/tiny_root.h"
#include "support/expect_error.h"
#include "support/golden.h"
#include "support/file_bytes.h"
#include "support/temp_dir.h"

namespace magi {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::json;

/// Every file's bytes by its path in the directory.
std::map<std::string, std::string> contents(const fs::path& directory) {
  std::map<std::string, std::string> files;
  for (const auto& entry : fs::recursive_directory_iterator(directory))
    if (entry.is_regular_file()) files[fs::relative(entry.path(), directory)] = bytes_of(entry.path());
  return files;
}

void write(const fs::path& file, const std::string& bytes) {
  fs::remove(file);  // it may be a second name of another root's file
  std::ofstream(file, std::ios::binary) << bytes;
}

/// Reads every file as its user does.
void load_everything(const fs::path& path) {
  const CheckpointRoot root(path, std::nullopt);
  ConfigNode::read(root.text_encoder() / "config.json");
  ConfigNode::read(root.text_encoder() / "tokenizer.json");
  ConfigNode::read(root.turbo_decoder_config());
  ConfigNode::read(root.audio_decoder() / "model_config.json");
  for (const fs::path& part : {root.preview(), root.text_encoder(), root.refiner(), root.audio_decoder(),
                               root.wan_vae(), root.turbo_decoder_weights()}) {
    const auto store = open_checkpoint(part);
    for (const auto& [name, info] : store->entries()) store->load(name);
  }
}

/// Files of a native root after a change that its maker could have made: the manifest agrees with them.
void write_manifest_again(const fs::path& root) {
  NativeManifest manifest = *read_manifest(root);
  for (auto& [name, file] : manifest.files) file = describe_file(root / name);
  write(root / kManifestName, manifest.to_text());
}

class CountingProgress final : public Progress {
 public:
  void advance(std::int64_t) override { ++count; }
  int count = 0;
};

class Quantize : public testing::Test {
 protected:
  Quantize() { write_tiny_root(path("root"), 1); }

  fs::path path(const std::string& name) const { return directory_ / name; }
  CheckpointRoot released() const { return {path("root"), std::nullopt}; }
  fs::path native(const QuantizeFormat& format = {}, const std::string& name = "native") const {
    Progress progress;
    quantize(released(), path(name), format, progress);
    return path(name);
  }
  /// How often a whole run tells of progress.
  int progress_calls(const QuantizeFormat& format) const {
    CountingProgress progress;
    quantize(released(), path("counted"), format, progress);
    return progress.count;
  }
  /// The hashes of a clip, with a reference image and refined where it says so.
  std::map<std::string, std::string> make(const fs::path& root, ExpertFormat experts,
                                          bool with_refiner = false) const {
    Json request{{"prompt", "A fox."}, {"width", 64}, {"height", 64}, {"seconds", 0.4}, {"steps", 2}};
    if (with_refiner)
      request.update(
          {{"image", (path("root") / "example.png").string()}, {"refine", "96x64"}, {"refiner_steps", 2}});
    Progress progress;
    EngineOptions options;
    options.experts = experts;
    const CheckpointRoot checkpoint(root, std::nullopt);
    const Report report =
        generate(checkpoint, make_variants(1, {request, path("clip.mp4"), {}}, checkpoint.defaults()),
                 progress, options)
            .at(0);
    EXPECT_EQ(report.error, "");
    return report.sha256;
  }

  TempDir directory_;
};

TEST_F(Quantize, NativeRootsMakeTheSameClips) {
  const fs::path packed = native(), plain = native({false, false}, "plain");
  const auto expected = make(path("root"), ExpertFormat::nvfp4);
  EXPECT_EQ(make(packed, ExpertFormat::stored), expected);
  EXPECT_EQ(make(path("root"), ExpertFormat::nvfp4_fake), expected);
  EXPECT_EQ(make(packed, ExpertFormat::nvfp4_fake), expected);
  EXPECT_EQ(make(packed, ExpertFormat::bf16), expected);
  EXPECT_EQ(make(plain, ExpertFormat::nvfp4), expected);
  const auto unquantised = make(path("root"), ExpertFormat::stored);
  EXPECT_EQ(make(plain, ExpertFormat::stored), unquantised);
  EXPECT_NE(unquantised.at("latents"), expected.at("latents"));
  EXPECT_EQ(make(packed, ExpertFormat::stored, true), make(path("root"), ExpertFormat::nvfp4, true));
}

TEST_F(Quantize, FourBitTextEncoder) {
  const fs::path root = native({true, true});
  EXPECT_EQ(read_manifest(root)->text_encoder, "nvfp4");
  const auto store = with_plain_matrices(open_checkpoint(root / "text_encoder"));
  const auto released = open_checkpoint(path("root") / "text_encoder");
  std::size_t packed = 0;
  for (const auto& [name, info] : store->entries()) {
    ASSERT_EQ(info.shape, released->entries().at(name).shape) << name;
    if (info.stored_as != "NVFP4") continue;
    ++packed;
    const double error = relative_l2(store->load(name), released->load(name));
    EXPECT_NEAR(error, 0.095, 0.02) << name;
  }
  EXPECT_GT(packed, 10U);
  EXPECT_NE(make(root, ExpertFormat::stored), make(native({true, false}, "plain"), ExpertFormat::stored));
}

TEST_F(Quantize, LayersAreFilesAndTensorsAreAligned) {
  const fs::path root = native();
  const auto config = PreviewConfig::from(CheckpointRoot(root, std::nullopt).config());
  for (std::int64_t i = 0; i < config.layers; ++i) {
    const auto store = open_safetensors(root / fmt::format("preview/layer-{:03}.safetensors", i));
    for (const auto& [name, info] : store->entries()) {
      EXPECT_EQ(name.rfind(fmt::format("block.layers.{}.", i), 0), 0U) << name;
      EXPECT_TRUE(info.dtype == DType::f32 || info.dtype == DType::bf16 || info.dtype == DType::u8) << name;
      const Tensor tensor = store->load(name);
      const std::size_t divisor = std::min<std::size_t>(info.bytes & (~info.bytes + 1), 4096);
      EXPECT_EQ(reinterpret_cast<std::uintptr_t>(tensor.raw()) % divisor, 0U) << name;
    }
  }
  for (const PartInventory& part : take_inventory(CheckpointRoot(root, std::nullopt)))
    EXPECT_TRUE(part.problems.empty() && part.bytes > 0) << part.name << ": " << part.problems.front();
}

/// Raises SIGKILL when it is told of progress for the n-th time.
class DeadlyProgress final : public Progress {
 public:
  explicit DeadlyProgress(int n) : left_(n) {}
  void advance(std::int64_t) override {
    if (--left_ == 0) ::raise(SIGKILL);
  }
  int left() const { return left_; }

 private:
  int left_;
};

/// In a process of its own, on one thread: OpenMP's threads do not survive a fork.
int quantize_in_child(const CheckpointRoot& root, const fs::path& out, const QuantizeFormat& format,
                      int kill_at) {
  const pid_t child = ::fork();
  if (child == 0) {
    omp_set_num_threads(1);
    DeadlyProgress progress(kill_at);
    try {
      quantize(root, out, format, progress);
    } catch (const std::exception&) {
      ::_exit(1);
    }
    ::_exit(0);
  }
  int status = 0;
  ::waitpid(child, &status, 0);
  return status;
}

TEST_F(Quantize, KilledAnywhereAndResumedGivesTheSameBytes) {
  const QuantizeFormat format{true, true};
  const auto whole = contents(native(format, "whole"));
  const int calls = progress_calls(format);
  std::mt19937 random(std::random_device{}());
  for (int trial = 0; trial < 10; ++trial) {
    const int kill_at = std::uniform_int_distribution(1, calls)(random);
    SCOPED_TRACE("killed at " + std::to_string(kill_at) + " of " + std::to_string(calls));
    const fs::path out = path("killed" + std::to_string(trial));
    const int status = quantize_in_child(released(), out, format, kill_at);
    ASSERT_TRUE(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL) << status;
    ASSERT_FALSE(fs::exists(out / kManifestName));
    expect_error([&] { CheckpointRoot(out, std::nullopt); }, "not finished");
    // Killed once more on the way, then left alone.
    quantize_in_child(released(), out, format, std::uniform_int_distribution(1, calls)(random));
    Progress progress;
    quantize(released(), out, format, progress);
    ASSERT_TRUE(contents(out) == whole);
  }
}

TEST_F(Quantize, ResumingKeepsWhatIsFinished) {
  const fs::path out = path("out");
  quantize_in_child(released(), out, {}, progress_calls({}) * 3 / 4);
  std::map<std::string, fs::file_time_type> before;
  for (const auto& entry : fs::recursive_directory_iterator(out))
    if (entry.is_regular_file() && entry.path().filename().string().find(".partial-") == std::string::npos)
      before[entry.path()] = entry.last_write_time();
  ASSERT_GT(before.size(), 3U);
  expect_error([&] { native({false, false}, "out"); }, "begun from");
  native({}, "out");
  std::size_t kept = 0;
  for (const auto& [file, time] : before) kept += fs::exists(file) && fs::last_write_time(file) == time;
  EXPECT_GE(kept + 2, before.size());  // but the list of what is finished, and what was not in it yet
  for (const auto& [name, bytes] : contents(out)) EXPECT_EQ(name.find("partial"), std::string::npos) << name;
  const auto finished = contents(out);
  native({}, "out");  // complete already
  EXPECT_TRUE(contents(out) == finished);
}

TEST_F(Quantize, AFlippedBitInAnyFileIsFoundByName) {
  const fs::path root = native({true, true});
  load_everything(root);
  std::mt19937 random(7);
  for (const auto& [name, bytes] : contents(root)) {
    std::string flipped = bytes;
    const auto at = std::uniform_int_distribution<std::size_t>(0, bytes.size() - 1)(random);
    flipped[at] = static_cast<char>(flipped[at] ^ (1 << (random() % 8)));
    write(root / name, flipped);
    expect_error([&] { load_everything(root); }, name);
    write(root / name,
          bytes.substr(0, bytes.size() - 1 - random() % std::min<std::size_t>(bytes.size() - 1, 5000)));
    expect_error([&] { load_everything(root); }, name);
    write(root / name, bytes);
  }
  load_everything(root);
}

TEST_F(Quantize, HostileRootsEndInOneLine) {
  const fs::path root = native();
  const auto whole = contents(root);
  const std::string layer = "preview/layer-002.safetensors";
  const auto restore = [&](const std::string& name) { write(root / name, whole.at(name)); };
  const auto manifest_with = [&](const char* key, const Json& value) {
    Json json = Json::parse(whole.at(kManifestName));
    json[key] = value;
    write(root / kManifestName, json.dump());
  };
  const auto open = [&] { CheckpointRoot(root, std::nullopt); };
  manifest_with("version", 3);
  expect_error(open, "version 3 of the format; this program reads version 2");
  manifest_with("version", "one");
  expect_error(open, "no version");
  manifest_with("experts", "nvfp4");
  expect_error(open, "checksum");
  write(root / kManifestName, "[1, 2");
  expect_error(open, "not valid JSON");
  write(root / kManifestName, "");
  expect_error(open, kManifestName);
  restore(kManifestName);

  // A file that its manifest agrees with, and that is wrong all the same.
  const auto load = [&] {
    Arena arena = Arena::on_host(std::size_t{1} << 28);
    const auto ops = make_cpu_ops(arena);
    const CheckpointRoot checkpoint(root, std::nullopt);
    load_preview(*ops, *open_checkpoint(checkpoint.preview()), PreviewConfig::from(checkpoint.config()),
                 DType::bf16);
  };
  load();
  const auto store = open_safetensors(root / layer);
  std::string packed;
  for (const auto& [name, info] : store->entries())
    if (name.ends_with(kPackedExperts)) packed = name;
  const auto change = [&](const std::string& name, const Tensor& to) {
    std::vector<std::pair<std::string, Tensor>> tensors;
    for (const auto& [other, info] : store->entries())
      tensors.emplace_back(other, other == name ? to : store->load(other));
    fs::remove(root / layer);
    write_safetensors(root / layer, tensors);
    write_manifest_again(root);
  };
  ASSERT_NE(packed, "");
  change(packed, store->load(packed).columns(0, 128).clone());
  expect_error(load, packed);
  change(packed, Tensor::zeros(DType::f32, {4, 4}));
  expect_error(load, "expected U8");
  change("block.layers.2.mhc_norm.weight", Tensor::zeros(DType::f32, {3}));
  expect_error(load, "mhc_norm.weight");
  restore(layer);

  for (const std::string& header :
       {std::string(
            R"({"x":{"dtype":"U8","shape":[9223372036854775807,9223372036854775807],"data_offsets":[0,8]}})"),
        std::string(R"({"x":{"dtype":"U8","shape":[1099511627776],"data_offsets":[0,1099511627776]}})"),
        std::string("{")}) {
    const std::uint64_t size = header.size();
    write(root / layer, std::string(reinterpret_cast<const char*>(&size), 8) + header + std::string(8, '\0'));
    write_manifest_again(root);
    expect_error(load, layer);
  }
  write(root / layer, std::string(8, '\xff'));
  write_manifest_again(root);
  expect_error(load, layer);
}

TEST_F(Quantize, RefusesWhatItCannotDo) {
  const fs::path root = native();
  Progress progress;
  expect_error([&] { quantize(CheckpointRoot(root, std::nullopt), path("again"), {}, progress); },
               "native already");
  expect_error([&] { quantize(released(), path("root"), {}, progress); }, "a directory of its own");
  expect_error([&] { quantize(released(), root, {false, false}, progress); }, "is there already");
  directory_.write("full/note.txt", "mine");
  expect_error([&] { native({}, "full"); }, "neither empty nor an unfinished");
  EXPECT_EQ(bytes_of(path("full/note.txt")), "mine");
  expect_error([&] { quantize(released(), path("full") / "note.txt", {}, progress); }, "note.txt");

  // A weight that is not finite.
  const fs::path file = path("root") / "preview/model.safetensors";
  std::vector<std::pair<std::string, Tensor>> tensors;
  {
    const auto store = open_safetensors(file);
    for (const auto& [name, info] : store->entries()) tensors.emplace_back(name, store->load(name).clone());
  }
  for (const std::string part : {"moe_mlp.W_up", "attention.linear_qkv.weight"}) {
    auto bad = tensors;
    for (auto& [name, tensor] : bad)
      if (name.ends_with(part)) {
        tensor = tensor.to(DType::f32).clone();
        tensor.data<float>()[tensor.numel() - 1] = NAN;
      }
    write_safetensors(file, bad);
    expect_error([&] { native({}, "nan-" + part); }, "damaged");
  }
  tensors.pop_back();
  write_safetensors(file, tensors);
  expect_error([&] { native({}, "missing"); }, "is missing");
  EXPECT_FALSE(fs::exists(path("missing")));
}

/// A layer far larger than what may be in memory: its weights are a hole in a file.
TEST_F(Quantize, MemoryDoesNotGrowWithTheModel) {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  GTEST_SKIP() << "a sanitizer's own memory counts as resident";
#endif
  const fs::path file = path("root") / "preview/model.safetensors";
  Json config = Json::parse(bytes_of(path("root") / "config.json"));
  const auto sizes = PreviewConfig::from(ConfigNode(config, "config.json"));
  const std::int64_t layer = sizes.moe_layers.front(), hidden = 65536;
  config["arch_config"]["moe_config"]["expert_intermediate_size"] = hidden;
  config["arch_config"]["moe_config"]["moe_layers"] = {layer};
  config["arch_config"]["num_layers"] = layer + 1;
  write(path("root") / "config.json", config.dump());
  // The sparse tensors come last, so that a longer file is all that they need.
  Json header = Json::object();
  std::string data;
  std::size_t end = 0, sparse = 0;
  {
    const auto store = open_safetensors(file);
    const auto add = [&](const std::string& name, const char* dtype, const Shape& shape, std::size_t bytes) {
      header[name] = {{"dtype", dtype}, {"shape", shape}, {"data_offsets", {end, end + bytes}}};
      end += bytes;
    };
    const std::string prefix = fmt::format("block.layers.{}.mlp.moe_mlp.W_", layer);
    for (const auto& [name, info] : store->entries()) {
      if (name.rfind(prefix, 0) == 0) continue;
      const Tensor tensor = store->load(name);
      data.append(static_cast<const char*>(tensor.raw()), tensor.bytes());
      add(name, info.stored_as.c_str(), info.shape, info.bytes);
    }
    const std::int64_t n = sizes.moe_heads * sizes.experts, d = sizes.moe_width / sizes.moe_heads;
    const auto bytes = static_cast<std::size_t>(n * d * hidden) * 2;
    sparse = 3 * bytes;
    add(prefix + "gate", "BF16", {n, d, hidden}, bytes);
    add(prefix + "up", "BF16", {n, d, hidden}, bytes);
    add(prefix + "down", "BF16", {n, hidden, d}, bytes);
  }
  std::string text = header.dump();
  text.resize((text.size() + 7) / 8 * 8, ' ');
  const std::uint64_t size = text.size();
  write(file, std::string(reinterpret_cast<const char*>(&size), 8) + text + data);
  fs::resize_file(file, 8 + text.size() + end);
  ASSERT_GT(sparse, std::size_t{250} << 20);

  reset_peak_resident();
  const std::size_t before = peak_resident_bytes();
  native();
  const std::size_t after = peak_resident_bytes();
  std::printf("%zu MB of experts: %zu MB more resident memory\n", sparse >> 20, (after - before) >> 20);
  EXPECT_LT(after - before, sparse / 2);
}

/// A native root of the golden model computes what its released root does with four-bit experts.
TEST(GoldenQuantize, NativeRootEqualsPackingAtLoad) {
  if (!fs::exists(golden_model("config.json"))) GTEST_SKIP() << "golden model missing: " << golden_model();
  const TempDir directory;
  Progress progress;
  const CheckpointRoot released(golden_model(), std::nullopt);
  quantize(released, directory / "native", {}, progress);
  const CheckpointRoot native(directory / "native", std::nullopt);
  const auto latents = [&](const CheckpointRoot& root, ExpertFormat experts) {
    const Json request{{"prompt", "fox"}, {"width", 64}, {"height", 64},
                       {"seconds", 0.4},  {"steps", 2},  {"audio", false}};
    EngineOptions options;
    options.experts = experts;
    const Report report =
        generate(root, make_variants(1, {request, directory / "clip.mp4", {}}, root.defaults()), progress,
                 options)
            .at(0);
    EXPECT_EQ(report.error, "");
    return report.sha256;
  };
  EXPECT_EQ(latents(native, ExpertFormat::stored), latents(released, ExpertFormat::nvfp4));
}

}  // namespace
}  // namespace magi
