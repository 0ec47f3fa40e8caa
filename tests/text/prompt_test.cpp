// SPDX-License-Identifier: Apache-2.0
#include "text/prompt.h"

#include <gtest/gtest.h>

#include "core/error.h"
#include "support/expect_error.h"
#include "text/captions.h"
#include "text/json_text.h"
#include "text/negative_prompt.h"

namespace magi {
namespace {

TEST(Prompt, WrongTypesAreWrittenAsPythonWrites) {
  EXPECT_EQ(flatten_prompt(R"({"global_layer": {"context": ["a", "it's", {"k": true, "f": 1e20}]}})"),
            R"(context: ['a', "it's", {'k': True, 'f': 1e+20}])");
  EXPECT_EQ(flatten_prompt(R"({"global_layer": {"context": 10.0}})"), "context: 10.0");
  EXPECT_EQ(flatten_prompt(R"({"global_layer": {"context": false}})"), "context: False");
  EXPECT_EQ(flatten_prompt(R"({"global_layer": {"audio_baseline": {"dialogue": {"speaker_tags": "me"}}}})"),
            "audio: speakers=me");
  EXPECT_EQ(flatten_prompt(R"({"global_layer": {"context": "x", "objects_static": [3]}})"),
            "context: x\nobjects:");
}

TEST(Prompt, NumbersAsPythonWritesThem) {
  const std::vector<std::pair<double, const char*>> cases = {{0.0, "0.0"},
                                                             {-0.0, "-0.0"},
                                                             {1.0, "1.0"},
                                                             {0.1, "0.1"},
                                                             {1e15, "1000000000000000.0"},
                                                             {1e16, "1e+16"},
                                                             {1e-4, "0.0001"},
                                                             {1e-5, "1e-05"},
                                                             {123456.789, "123456.789"},
                                                             {5e-324, "5e-324"},
                                                             {1.5e300, "1.5e+300"}};
  for (const auto& [value, text] : cases) EXPECT_EQ(number_text(value), text);
  EXPECT_EQ(number_text(7), "7");
}

TEST(Prompt, FigureReferenceReplacesTheFieldInPlace) {
  EXPECT_EQ(with_figure_reference(R"({"reference_layer":5,"a":[1,2.50,null,"\u00e9\n"]})"),
            "{\"reference_layer\": [\"The first frame refers to <Figure 1>\"], \"a\": [1, 2.5, null, "
            "\"\u00e9\\n\"]}");
  EXPECT_EQ(with_figure_reference("[1]"), "[1]reference_layer:The first frame refers to <Figure 1>");
}

TEST(Prompt, PreparedForTheTextEncoder) {
  EXPECT_EQ(prepare_prompt("a fox", false), "a fox");
  EXPECT_EQ(prepare_prompt(R"({"global_layer": {"context": "x"}})", true),
            "context: x\nThe first frame refers to <Figure 1>");
  expect_error([&] { (void)prepare_prompt("", false); }, "prompt is empty");
  expect_error([&] { (void)prepare_prompt(" \n\u3000", true); }, "prompt is empty");
  expect_error([&] { (void)prepare_prompt("a\x80", false); }, "not valid UTF-8 at byte 1");
  expect_error([&] { (void)prepare_prompt(R"({"global_layer": {"context": ""}})", false); }, "no text");
  expect_error([&] { (void)prepare_prompt(std::string(100000, '['), false); }, "nested deeper");
  std::string wide = "{";
  for (int i = 0; i < 90'000; ++i) wide += fmt::format("{}\"{}\":{{}}", i ? "," : "", i);
  expect_error([&] { (void)prepare_prompt(wide + "}", false); }, "more than 30000 values");
}

TEST(Prompt, FigureSpanCountsCodePoints) {
  EXPECT_EQ(figure_span("\u96EA <Figure 12> <Figure 1>", 1), (TokenSpan{14, 24}));
  EXPECT_EQ(figure_span("<Figure 1>", 2), std::nullopt);
  Tokens tokens;
  tokens.offsets = {{0, 2}, {2, 4}, {3, 5}, {5, 6}};
  EXPECT_EQ(tokens_in(tokens, {3, 5}), (std::vector<std::int64_t>{1, 2}));
}

TEST(Prompt, NegativePromptIsTheReleasedOne) {
  EXPECT_EQ(default_negative_prompt().size(), 1721u);
  EXPECT_TRUE(default_negative_prompt().starts_with("Bright tones, overexposed, static,"));
  EXPECT_TRUE(default_negative_prompt().ends_with("off-key, autotune artifacts"));
}

TEST(Captions, DeepHeadingsNestedListsAndBlankLines) {
  const auto deep = PromptJson::parse(R"({"a":{"b":{"c":{"d":{"e":{"f":{"g":{"h":1}}}}}}}})");
  EXPECT_EQ(caption_markdown(deep), "# a\n\n## b\n\n### c\n\n#### d\n\n##### e\n\n###### f\n\n*g*\n\nh:1\n");
  EXPECT_EQ(caption_markdown(PromptJson::parse(R"([[1, [2]], "x  "])")),
            "## item1\n\nitem1:1\n#### item2\n\nitem1:2\nitem2:x\n");
  EXPECT_EQ(caption_markdown(PromptJson::parse(R"({"a": [null, {}], "b": " "})")), "");
  EXPECT_EQ(caption_markdown(PromptJson::parse(R"({"k": 12.50})")), "k:12.5\n");
}

}  // namespace
}  // namespace magi
