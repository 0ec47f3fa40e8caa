// SPDX-License-Identifier: Apache-2.0
#include "io/config.h"

#include <gtest/gtest.h>

#include "support/expect_error.h"
#include "support/golden.h"
#include "support/temp_dir.h"

namespace magi {
namespace {

TEST(Config, ExtendsMergesDeeplyAndExpandsTheRoot) {
  const TempDir dir;
  dir.write("base/base.json",
            R"({"a": {"x": 1, "y": [1, 2]}, "b": "${MAGI2_CKPT_ROOT}/p:${MAGI2_CKPT_ROOT}", "c": 3})");
  const auto file =
      dir.write("top.json", R"({"extends": "base/base.json", "a": {"y": [3], "z": null}, "c": {"d": 4}})");
  EXPECT_EQ(load_config(file, "/r"),
            nlohmann::json::parse(R"({"a": {"x": 1, "y": [3], "z": null}, "b": "/r/p:/r", "c": {"d": 4}})"));
  // A root that holds the variable's own name must not be expanded for ever.
  EXPECT_EQ(load_config(file, "${MAGI2_CKPT_ROOT}")["b"], "${MAGI2_CKPT_ROOT}/p:${MAGI2_CKPT_ROOT}");
}

TEST(Config, RefusesCirclesAndBrokenFiles) {
  const TempDir dir;
  dir.write("a.json", R"({"extends": "b.json"})");
  dir.write("b.json", R"({"extends": "./a.json"})");
  expect_error([&] { load_config(dir / "a.json", ""); }, "circle");
  for (int i = 0; i < 100; ++i)
    dir.write(fmt::format("chain{}.json", i), fmt::format("{{\"extends\": \"chain{}.json\"}}", i + 1));
  expect_error([&] { load_config(dir / "chain0.json", ""); }, "more than 32");
  expect_error([&] { load_config(dir.write("c.json", R"({"extends": 7})"), ""); }, "extends");
  expect_error([&] { load_config(dir.write("d.json", R"({"extends": "none.json"})"), ""); }, "none.json");
  expect_error([&] { load_config(dir.write("e.json", "[1]"), ""); }, "object");
  expect_error([&] { load_config(dir.write("f.json", "{\"a\": 1"), ""); },
               "not valid JSON: parse error at line 1");
  expect_error([&] { load_config(dir.write("g.json", "{\"a\": \"\xff\"}"), ""); }, "not valid JSON");
  expect_error([&] { load_config(dir.write("h.json", std::string(100'000, '[')), ""); }, "deep");
  expect_error([&] { load_config(dir.write("i.json", ""), ""); }, "not valid JSON");
  expect_error([&] { load_config(dir.write("j.json", "{\"a\": {\"b\": 1,\n \"c\": {},\n \"b\": 2}}"), ""); },
               "j.json: line 3: the name b is there twice");
  EXPECT_NO_THROW(
      load_config(dir.write("k.json", R"({"a": [{"b": 1}, {"b": {"a": 1, "b": 2}}], "b": {"a": 3}})"), ""));
  expect_error([&] { load_config(dir.path(), ""); }, "not a regular file");
}

TEST(Config, ReadsTypedValuesAndNamesThePlaceOfBadOnes) {
  const ConfigNode root(
      nlohmann::json::parse(
          R"({"n": 4, "x": 2.5, "t": "s", "b": true, "null": null, "big": 18446744073709551615,
      "list": [1, 2], "flags": [true, false], "deep": {"moe_config": {"top_k": "six"}}})"),
      "config.json");
  EXPECT_EQ(root.integer("n", 1, 1, 8), 4);
  EXPECT_EQ(root.integer("absent", 7), 7);
  EXPECT_EQ(root.integer("null", 9), 9);
  EXPECT_EQ(root.number("n", 0), 4.0);
  EXPECT_EQ(root.number("x", std::nullopt), 2.5);
  EXPECT_EQ(root.text("t", "u"), "s");
  EXPECT_TRUE(root.boolean("b", false));
  EXPECT_EQ(root.integers("list", std::nullopt), (std::vector<std::int64_t>{1, 2}));
  EXPECT_EQ(root.booleans("flags", std::nullopt), (std::vector<bool>{true, false}));
  EXPECT_EQ(root.texts("absent", std::vector<std::string>{"d"}), (std::vector<std::string>{"d"}));
  EXPECT_EQ(root.node("absent").node("deeper").integer("k", 3), 3);

  expect_error([&] { root.node("deep").node("moe_config").integer("top_k", 6, 1, 64); },
               R"(config.json: deep.moe_config.top_k: expected an integer from 1 to 64, found "six")");
  expect_error([&] { root.integer("n", 1, 5, 8); }, "n: expected an integer from 5 to 8, found 4");
  expect_error([&] { root.integer("x", 1); }, "x: expected an integer, found 2.5");
  expect_error([&] { root.integer("b", 1); }, "b: expected an integer");
  expect_error([&] { root.integer("big", 1); }, "big: expected an integer");
  expect_error([&] { root.number("t", 1); }, "t: expected a number");
  expect_error([&] { root.boolean("n", true); }, "n: expected true or false, found 4");
  expect_error([&] { root.text("n", ""); }, "n: expected a string of at most 4095 bytes, found 4");
  const ConfigNode lengths({{"long", std::string(4096, 'x')}}, "c.json");
  expect_error([&] { lengths.text("long", ""); },
               "long: expected a string of at most 4095 bytes, found \"xxx");
  EXPECT_EQ(lengths.text("long", "", 4096).size(), 4096u);
  expect_error([&] { root.integers("list", std::nullopt, 2, 9); },
               "list: expected a list, each an integer from 2 to 9");
  expect_error([&] { root.integers("n", std::nullopt); }, "n: expected a list");
  expect_error([&] { root.node("n"); }, "n: expected an object");
  expect_error([&] { root.integer("absent", std::nullopt); }, "absent is missing, expected an integer");
  expect_error([&] { ConfigNode(nlohmann::json(3), "c.json"); }, "c.json");
}

TEST(GoldenConfig, ReadsTheOfficialSchema) {
  if (!std::filesystem::exists(golden_model("config.json")))
    GTEST_SKIP() << golden_model("config.json") << " missing";
  const ConfigNode config(load_config(golden_model("config.json"), golden_model()), "config.json");
  EXPECT_GE(config.node("arch_config").integer("num_layers", std::nullopt, 1, 1000), 1);
  EXPECT_FALSE(config.node("arch_config").integers("mm_layers", std::nullopt, 0, 1000).empty());
  EXPECT_EQ(config.node("evaluation_config").text("vae_model_path", std::nullopt),
            golden_model("vae").string());
}

}  // namespace
}  // namespace magi
