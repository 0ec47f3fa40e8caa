// SPDX-License-Identifier: Apache-2.0
#include "io/safetensors.h"

#include <gtest/gtest.h>

#include <vector>

#include "support/temp_dir.h"

namespace magi {
namespace {

TEST(Safetensors, WritesWhatItReads) {
  const TempDir dir;
  const std::vector<float> values{1, -2, 3.5f, 0, 5, 6};
  const std::vector<std::uint8_t> bytes{1, 2, 3};
  write_safetensors(dir / "a.safetensors",
                    {{"odd", Tensor::of<std::uint8_t>(bytes, {3})},  // leaves the next tensor misaligned
                     {"x", Tensor::of<float>(values, {2, 3})},
                     {"empty", Tensor::empty(DType::bf16, {0, 4})}},
                    {{"seed", "7"}});
  const auto store = open_safetensors(dir / "a.safetensors");
  EXPECT_EQ(store->entries().size(), 3u);
  const Tensor x = store->get("x", {2, 3});
  EXPECT_TRUE(std::ranges::equal(x.values<float>(), values));
  EXPECT_TRUE(std::ranges::equal(store->load("odd").values<std::uint8_t>(), bytes));
  EXPECT_EQ(store->get("empty", {0, 4}).numel(), 0);
  EXPECT_EQ(safetensors_metadata(dir / "a.safetensors").at("seed"), "7");
}

}  // namespace
}  // namespace magi
