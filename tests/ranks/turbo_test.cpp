// SPDX-License-Identifier: Apache-2.0
// Decoders over ranks: rank 0 gets the frames of one rank, bit for bit, in order.
#include <gtest/gtest.h>

#include "model/parallel.h"
#include "model/turbo_decoder.h"
#include "ranks/ranks_testing.h"
#include "support/expect_error.h"
#include "support/golden.h"

namespace magi {
namespace {

class GoldenTurboRanks : public testing::TestWithParam<DType> {};

TEST_P(GoldenTurboRanks, FramesOfOneRank) {
  if (!std::filesystem::exists(golden_model("turbo_vae"))) GTEST_SKIP() << "no golden turbo decoder";
  Arena arena = rank_arena();
  const auto ops = make_ops(arena);
  const Group all = data_group(world(), *ops);
  TurboDecoder decoder = TurboDecoder::load(*ops, golden_model("turbo_vae"), GetParam());
  const std::int64_t reach = turbo_reach(decoder.config());
  struct Case {
    std::int64_t latents, height, width;
    std::optional<TurboTiling> tiling;
  };
  const Case cases[] = {{1, 2, 3, {}},
                        {9, 3, 2, {}},
                        {decoder.config().first_chunk, 2, 2 * reach + 5, TurboTiling{1, 3}},
                        {decoder.config().first_chunk + 2, reach + 3, 5, TurboTiling{2, 2}}};
  unsigned seed = 1;
  for (const Case& c : cases) {
    const Tensor latent = random_normal(++seed, {48, c.latents, c.height, c.width});
    if (c.tiling) decoder.set_tiling(*c.tiling);
    const auto decode = [&](const Group& ranks) {
      std::vector<std::uint8_t> pixels;
      decoder.decode(
          *ops, latent,
          [&](const Tensor& frames) {
            const auto values = frames.values<std::uint8_t>();
            pixels.insert(pixels.end(), values.begin(), values.end());
          },
          ranks);
      return pixels;
    };
    const auto together = decode(all);
    if (world().rank() > 0) {
      EXPECT_TRUE(together.empty());
      continue;
    }
    EXPECT_EQ(together.size(),
              static_cast<std::size_t>((4 * (c.latents - 1) + 1) * c.height * c.width * 768));
    EXPECT_TRUE(together == decode({})) << c.latents << " latents of " << c.height << "x" << c.width;
  }
}

/// A sink that fails is told of on rank 0, and no rank waits for ever.
TEST(GoldenTurboRanksEnd, AFailingSinkEndsOnAllRanks) {
  if (!std::filesystem::exists(golden_model("turbo_vae"))) GTEST_SKIP() << "no golden turbo decoder";
  Arena arena = rank_arena();
  const auto ops = make_ops(arena);
  const Group all = data_group(world(), *ops);
  const TurboDecoder decoder = TurboDecoder::load(*ops, golden_model("turbo_vae"), DType::f32);
  const Tensor latent = random_normal(1, {48, 12, 1, 2});
  int calls = 0;
  const auto decode = [&] {
    decoder.decode(
        *ops, latent,
        [&](const Tensor&) {
          if (++calls == 2) fail("the disk is full");
        },
        all);
  };
  if (world().rank() == 0)
    expect_error(decode, "disk is full");
  else
    decode();
  EXPECT_EQ(calls, world().rank() == 0 ? 2 : 0);
}

INSTANTIATE_TEST_SUITE_P(Ranks, GoldenTurboRanks, testing::Values(DType::f32, DType::bf16),
                         [](const auto& info) { return std::string(name_of(info.param)); });

}  // namespace
}  // namespace magi
