// SPDX-License-Identifier: Apache-2.0
#include "io/safetensors.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <vector>

#include "support/expect_error.h"
#include "support/file_size_limit.h"
#include "support/temp_dir.h"

namespace magi {
namespace {

/// A file of this header and so many bytes of data; its length field as given, else the truth.
std::string file_of(const std::string& header, std::size_t data_bytes, std::int64_t length = -1) {
  const auto stated =
      static_cast<std::uint64_t>(length < 0 ? static_cast<std::int64_t>(header.size()) : length);
  std::string file(reinterpret_cast<const char*>(&stated), sizeof stated);
  return file + header + std::string(data_bytes, '\0');
}

std::shared_ptr<TensorStore> open_bytes(const std::string& file) {
  const auto owner = std::make_shared<std::string>(file);
  return safetensors_store(std::as_bytes(std::span(*owner)), owner, "f.safetensors");
}

std::shared_ptr<TensorStore> open_header(const std::string& header, std::size_t data_bytes) {
  return open_bytes(file_of(header, data_bytes));
}

TEST(Safetensors, WritesWhatItReads) {
  const TempDir dir;
  const std::vector<float> values{1, -2, 3.5f, 0, 5, 6};
  const std::vector<std::uint8_t> bytes{1, 2, 3};
  const auto file = dir / "a.safetensors";
  write_safetensors(file,
                    {{"odd", Tensor::of<std::uint8_t>(bytes, {3})},  // leaves the next tensor misaligned
                     {"x", Tensor::of<float>(values, {2, 3})},
                     {"empty", Tensor::empty(DType::bf16, {0, 4})},
                     {"scalar", Tensor::zeros(DType::i64, {})}},
                    {{"seed", "7"}, {"prompt", "雪 \"fox\"\n"}});
  const auto store = open_safetensors(file);
  EXPECT_EQ(store->entries().size(), 4u);
  const Tensor x = store->get("x", {2, 3});
  EXPECT_TRUE(std::ranges::equal(x.values<float>(), values));
  EXPECT_TRUE(std::ranges::equal(store->load("odd").values<std::uint8_t>(), bytes));
  EXPECT_EQ(store->get("empty", {0, 4}).numel(), 0);
  EXPECT_EQ(store->load("scalar").data<std::int64_t>()[0], 0);
  EXPECT_EQ(safetensors_metadata(file).at("prompt"), "雪 \"fox\"\n");
  EXPECT_EQ(std::distance(std::filesystem::directory_iterator(dir.path()), {}),
            1);  // nothing was left beside it
}

TEST(Safetensors, WritingFailsWithoutLeavingAFile) {
  const TempDir dir;
  const Tensor x = Tensor::zeros(DType::f32, {4});
  expect_error(
      [&] {
        write_safetensors(dir / "none" / "a.safetensors", {{"x", x}});
      },
      "cannot write: No such file");
  expect_error(
      [&] {
        write_safetensors(dir / "a.safetensors", {{"x", x}, {"x", x}});
      },
      "two tensors called x");
  expect_error(
      [&] {
        write_safetensors(dir / "a.safetensors", {{"x", Tensor::zeros(DType::f32, {2, 2}).columns(0, 1)}});
      },
      "contiguous");
  expect_error([&] { write_safetensors(dir / "a.safetensors", {{"\xff", x}}); }, "UTF-8");
  std::filesystem::create_directory(dir / "taken");
  expect_error([&] { write_safetensors(dir / "taken", {{"x", x}}); }, "cannot write");
  EXPECT_EQ(std::distance(std::filesystem::directory_iterator(dir.path()), {}), 1);
  const FileSizeLimit limit(60);
  expect_error([&] { write_safetensors(dir / "b", {{"x", x}}); }, "b: cannot write: File too large");
  EXPECT_EQ(std::distance(std::filesystem::directory_iterator(dir.path()), {}), 1);
}

TEST(Safetensors, KeepsTheMappingAliveAsLongAsATensor) {
  const TempDir dir;
  write_safetensors(dir / "a.safetensors", {{"x", Tensor::zeros(DType::f32, {1000})}});
  Tensor x = open_safetensors(dir / "a.safetensors")->load("x");
  std::filesystem::remove(dir / "a.safetensors");
  EXPECT_EQ(x.data<float>()[999], 0.0f);
}

TEST(Safetensors, AcceptsWhatTheReferenceLibraryAccepts) {
  EXPECT_TRUE(open_header("{}", 0)->entries().empty());
  EXPECT_TRUE(open_header("{}      ", 0)->entries().empty());
  EXPECT_TRUE(open_header(R"({"__metadata__":{}})", 0)->entries().empty());
  EXPECT_TRUE(open_header(R"({"__metadata__":null})", 0)->entries().empty());
  // Tensors without bytes may stand anywhere between others, and names in any order.
  const auto store = open_header(R"({"c":{"dtype":"F32","shape":[1],"data_offsets":[4,8]},
      "z":{"dtype":"F32","shape":[0,9],"data_offsets":[4,4]},"a":{"dtype":"F32","shape":[],"data_offsets":[0,4],"extra":1}})",
                                 8);
  EXPECT_EQ(store->entries().size(), 3u);
  EXPECT_EQ(store->get("z", {0, 9}).numel(), 0);
  // A header of odd length: values are misaligned in the file and must be copied.
  EXPECT_EQ(open_header(R"({"a":{"dtype":"F64","shape":[1],"data_offsets":[0,8]}} )", 8)
                ->get("a", {1})
                .data<double>()[0],
            0.0);
}

TEST(Safetensors, RefusesLyingLengths) {
  expect_error([] { open_bytes(""); }, "too few");
  expect_error([] { open_bytes("1234567"); }, "too few");
  expect_error([] { open_bytes(file_of("{}", 0, 3)); }, "truncated: a header of 3 bytes in a file of 10");
  expect_error([] { open_bytes(file_of("{}", 0, 100'000'001)); }, "not a safetensors file");
  expect_error([] { open_bytes(file_of("{}", 0, INT64_MAX)); }, "not a safetensors file");
  expect_error([] { open_bytes(std::string(8, '\xff')); }, "not a safetensors file");
  expect_error([] { open_bytes(file_of("{}", 0, 0)); }, "begin with");
  const std::string good = file_of(R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}})", 8);
  EXPECT_NO_THROW(open_bytes(good));
  for (std::size_t length = 0; length < good.size(); ++length)
    EXPECT_THROW(open_bytes(good.substr(0, length)), Error) << length;
}

std::string repeated(std::string_view part, int count) {
  std::string text;
  for (int i = 0; i < count; ++i) text += part;
  return text;
}

TEST(Safetensors, RefusesBadJson) {
  const auto refused = [](const std::string& header, std::string_view part) {
    expect_error([&] { open_header(header, 0); }, part);
  };
  refused("[]", "begin with");
  refused(" {}", "begin with");
  refused("{", "not valid JSON");
  refused("{}x", "not valid JSON: parse error at line 1");
  refused("{\"a\xff\":1}", "not valid JSON");
  refused(R"({"a":1})", "needs dtype");
  refused(R"({"a":{"dtype":1,"shape":[],"data_offsets":[0,0]}})", "needs dtype");
  refused(R"({"a":{"dtype":"F32","shape":[]}})", "needs dtype");
  refused(R"({"a":{"dtype":"F32","shape":[0],"data_offsets":[0]}})", "needs dtype");
  refused(R"({"a":{"dtype":"F32","shape":3,"data_offsets":[0,0]}})", "no shape");
  refused(R"({"__metadata__":{"a":1}})", "must hold strings");
  refused(R"({"__metadata__":[]})", "must hold strings");
  refused(
      R"({"a":{"dtype":"F32","shape":[0],"data_offsets":[0,0]},"a":{"dtype":"F32","shape":[0],"data_offsets":[0,0]}})",
      "the header: line 1: the name a is there twice");
  refused("{\"a\":" + std::string(1'000'000, '['), "nested more than 64 deep");
  refused("{\"a\":[0" + repeated(",0", 1 << 20) + "]}", "the header: more than 1048576 values");
  refused("{\"a\":1e999}", "not valid JSON");
}

TEST(Safetensors, RefusesOffsetsAndShapesThatLie) {
  const auto refused = [](const std::string& tensors, std::string_view part) {
    expect_error([&] { open_header("{" + tensors + "}", 16); }, part);
  };
  const auto tensor = [](const std::string& name, const std::string& shape, const std::string& offsets) {
    return fmt::format(R"("{}":{{"dtype":"F32","shape":[{}],"data_offsets":[{}]}})", name, shape, offsets);
  };
  EXPECT_NO_THROW(open_header("{" + tensor("a", "4", "0,16") + "}", 16));
  refused(tensor("a", "5", "0,20"), "do not lie in the file");
  refused(tensor("a", "4", "16,0"), "do not lie in the file");
  refused(tensor("a", "4", "0,18446744073709551615"), "do not lie in the file");
  refused(tensor("a", "4", "-1,15"), "must be an unsigned integer");
  refused(tensor("a", "4", "0.0,16"), "must be an unsigned integer");
  refused(tensor("a", "-4", "0,16"), "must be an unsigned integer");
  refused(tensor("a", "\\\"4\\\"", "0,16"), "not valid JSON");
  refused(tensor("a", "3", "0,16"), "header gives 16 bytes to F32 [3]");
  refused(tensor("a", "4611686018427387908", "0,16"), "header gives 16 bytes");  // × 4 bytes wraps to 16
  refused(tensor("a", "4294967296,4294967296", "0,0"), "too large");             // wraps to 0
  refused(tensor("a", "9223372036854775808", "0,16"), "too large");
  refused(tensor("a", "0,9223372036854775807,9223372036854775807", "0,0"), "too large");
  refused(tensor("a", "3", "0,12") + "," + tensor("b", "2", "8,16"), "overlap");
  refused(tensor("a", "2", "0,8") + "," + tensor("b", "1", "12,16"), "a hole");
  refused(tensor("a", "3", "4,16"), "a hole");
  refused(tensor("a", "3", "0,12"), "4 bytes follow the last tensor");
  refused(tensor("a", "4", "0,16") + "," + tensor("b", "4", "0,16"), "overlap");
}

TEST(Safetensors, ListsUnknownElementTypesAndRefusesToLoadThem) {
  const auto store = open_header(R"({"a":{"dtype":"F8_E4M3","shape":[4],"data_offsets":[0,4]},
                                     "b":{"dtype":"Q3_K","shape":[7],"data_offsets":[4,7]}})",
                                 7);
  EXPECT_EQ(store->entries().at("a").stored_as, "F8_E4M3");
  EXPECT_FALSE(store->entries().at("b").readable);
  expect_error([&] { store->get("a", {4}); },
               "f.safetensors: a is F8_E4M3 [4], an element type that cannot be read");
  expect_error([&] { store->load("b"); }, "Q3_K");
  expect_error([] { open_header(R"({"a":{"dtype":"F8_E4M3","shape":[5],"data_offsets":[0,4]}})", 4); },
               "header gives");
  expect_error([] { open_header(R"({"a":{"dtype":"F4","shape":[1],"data_offsets":[0,1]}})", 1); },
               "header gives");
}

TEST(Safetensors, RefusesValuesThatAreNotFinite) {
  const TempDir dir;
  Tensor x = Tensor::zeros(DType::bf16, {3, 5});
  x.data<bf16>()[13] = bf16(NAN);
  write_safetensors(dir / "a.safetensors", {{"x", x}});
  const auto store = open_safetensors(dir / "a.safetensors");
  expect_error(
      [&] {
        store->get("x", {3, 5});
      },
      "a.safetensors: x BF16 [3,5] holds NaN or infinity (first at element 13)");
  EXPECT_NO_THROW(store->load("x"));
}

}  // namespace
}  // namespace magi
