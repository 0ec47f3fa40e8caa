// SPDX-License-Identifier: Apache-2.0
#include "io/native_manifest.h"

#include <gtest/gtest.h>

#include <cstring>
#include <vector>

#include "io/checkpoint.h"
#include "io/json_file.h"
#include "io/safetensors.h"
#include "io/safetensors_writer.h"
#include "support/expect_error.h"
#include "support/temp_dir.h"

namespace magi {
namespace {

std::string hash_of(std::string_view text) {
  FileHash hash;
  for (const char c : text) hash.add(&c, 1);
  return hash.hex();
}

/// The text with its last 32 digits made right.
std::string signed_text(std::string text) {
  const std::size_t at = text.rfind(std::string(32, '0'));
  return text.replace(at, 32, hash_of(text));
}

TEST(NativeManifest, HashIsXxh3) {
  // From the algorithm's own test vectors: XXH3_128bits of nothing.
  EXPECT_EQ(FileHash().hex(), "99aa06d3014798d86001c324468d497f");
  EXPECT_NE(hash_of("a"), hash_of("b"));
}

TEST(NativeManifest, TextGoesThereAndBack) {
  NativeManifest m{"nvfp4",
                   "bf16",
                   "",
                   {{"preview/a.safetensors", {12, hash_of("x"), "0.09520"}}, {"b", {0, hash_of("")}}}};
  const std::string text = m.to_text();
  const NativeManifest same = NativeManifest::parse(text, "m");
  EXPECT_EQ(same.experts, "nvfp4");
  EXPECT_EQ(same.text_encoder, "bf16");
  EXPECT_TRUE(same.files == m.files);
  EXPECT_EQ(same.to_text(), text);
  for (std::size_t i = 0; i < text.size(); ++i)
    for (const int bit : {0, 3, 6}) {
      std::string flipped = text;
      flipped[i] = static_cast<char>(flipped[i] ^ (1 << bit));
      EXPECT_THROW(NativeManifest::parse(flipped, "m"), Error) << "byte " << i << ", bit " << bit;
    }
}

TEST(NativeManifest, HostileTextsAreRefused) {
  const std::string zeros(32, '0');
  const auto refuse = [&](const std::string& body, std::string_view why) {
    expect_error(
        [&] { NativeManifest::parse(signed_text("{" + body + R"("xxh3": ")" + zeros + "\"\n}\n"), "m"); },
        why);
  };
  const std::string head =
      R"("format": "magi2-native", "version": 2, "experts": "nvfp4", "text_encoder": "bf16", )";
  NativeManifest::parse(signed_text("{" + head + R"("files": {}, "xxh3": ")" + zeros + "\"\n}\n"), "m");
  refuse(R"("format": "other", )", "no manifest");
  refuse(R"("format": "magi2-native", )", "no version");
  refuse(R"("format": "magi2-native", "version": 99999999999999999999, )", "version");
  refuse(R"("format": "magi2-native", "version": 3, )", "version 3");
  refuse(R"("format": "magi2-native", "version": 2, "experts": 4, )", "experts is neither");
  refuse(head, "no files");
  refuse(head + R"("files": [1], )", "no files");
  const std::vector<std::string> entries{"3",
                                         "{}",
                                         R"({"bytes": -1, "xxh3": "00"})",
                                         R"({"bytes": 1e300, "xxh3": ")" + zeros + "\"}",
                                         R"({"bytes": 1, "xxh3": "zz"})",
                                         R"({"bytes": 1, "xxh3": 7})"};
  for (const std::string& entry : entries)
    refuse(head + R"("files": {"a": )" + entry + "}, ", "no size and checksum");
  expect_error([] { NativeManifest::parse("", "m"); }, "not valid JSON");
  expect_error([] { NativeManifest::parse("{}", "m"); }, "no manifest");
}

TEST(NativeManifest, FilesAreCheckedWhenTheirDataIsRead) {
  const TempDir root;
  std::filesystem::create_directories(root / "part");
  write_safetensors(root / "part/model.safetensors", {{"a", Tensor::zeros(DType::f32, {100})}});
  root.write("part/x.json", "{\"a\": 1}");
  NativeManifest m{"bf16", "bf16", "", {}};
  for (const char* name : {"part/model.safetensors", "part/x.json"})
    m.files[name] = describe_file(root / name);
  root.write(kManifestName, m.to_text());
  open_checkpoint(root / "part")->load("a");
  read_json(root / "part/x.json");
  root.write("part/other.json", "{}");
  read_json(root / "part/other.json");  // not named: not checked

  root.write("part/x.json", "{\"a\": 2}");
  expect_error([&] { read_json(root / "part/x.json"); }, "part/x.json: damaged or replaced");
  Tensor other = Tensor::zeros(DType::f32, {100});
  other.data<float>()[99] = 1;
  write_safetensors(root / "part/model.safetensors", {{"a", other}});
  const auto store = open_checkpoint(root / "part");
  for (int i = 0; i < 2; ++i)  // again, not once
    expect_error([&] { store->load("a"); }, "model.safetensors: damaged or replaced");
  write_safetensors(root / "part/model.safetensors", {{"a", Tensor::zeros(DType::f32, {99})}});
  expect_error([&] { open_checkpoint(root / "part")->load("a"); }, "cut or replaced");
}

TEST(SafetensorsWriter, PiecesMakeAFile) {
  const TempDir directory;
  const std::vector<TensorEntry> entries{
      {"big", DType::u8, {8192}}, {"words", DType::f32, {6}}, {"byte", DType::u8, {1}}};
  std::string data(8192 + 24 + 1, '\0');
  for (std::size_t i = 0; i < data.size(); ++i) data[i] = static_cast<char>(i * 7);
  SafetensorsWriter writer(directory / "a.safetensors", entries, {{"k", "v"}});
  for (std::size_t i = 0; i < data.size(); i += 1000)
    writer.write(data.data() + i, std::min<std::size_t>(1000, data.size() - i));
  const NativeFile made = writer.commit();
  EXPECT_TRUE(describe_file(directory / "a.safetensors") == made);
  const auto store = open_safetensors(directory / "a.safetensors");
  EXPECT_EQ(std::memcmp(store->load("words").raw(), data.data() + 8192, 24), 0);
  EXPECT_EQ(reinterpret_cast<std::uintptr_t>(store->load("big").raw()) % 4096, 0U);
  EXPECT_EQ(safetensors_metadata(directory / "a.safetensors").at("k"), "v");

  SafetensorsWriter half(directory / "b.safetensors", entries, {});
  half.write(data.data(), 100);
  expect_error([&] { half.commit(); }, "bytes written");
  EXPECT_FALSE(std::filesystem::exists(directory / "b.safetensors"));
  expect_error(
      [&] {
        safetensors_header({{"a", DType::u8, {1}}, {"a", DType::u8, {1}}}, {}, 8);
      },
      "two tensors");
}

}  // namespace
}  // namespace magi
