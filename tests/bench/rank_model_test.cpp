// SPDX-License-Identifier: Apache-2.0
#include "bench/rank_model.h"

#include <gtest/gtest.h>

#include <cstdio>
#include <nlohmann/json.hpp>

#include "io/config.h"

namespace magi {
namespace {

PreviewConfig release() {
  return PreviewConfig::from(ConfigNode(nlohmann::json::object(), "the release's configuration"));
}

const std::vector<std::int64_t> k272p{15015, 14601}, k540p{58023, 57609};

/// Seconds of the model, within a share of what was measured on H200s (docs/ranks.md).
void expect_near(const std::vector<std::int64_t>& rows, const Degrees& degrees, double measured,
                 double share) {
  const double predicted = predict_step(release(), rows, degrees, network_named("nvlink"), 16).seconds;
  std::printf("%ld rows, sp %d cfg %d ep %d: predicted %.3f s, measured %.3f s\n", static_cast<long>(rows[0]),
              degrees.sp, degrees.cfg, degrees.ep, predicted, measured);
  EXPECT_NEAR(predicted, measured, share * measured);
}

/// What the rates were taken from.
TEST(RankModel, AsMeasuredAt540p) {
  expect_near(k540p, {1, 1, 1}, 7.372, 0.01);
  expect_near(k540p, {1, 1, 1}, 7.288, 0.01);  // another card
  expect_near(k540p, {2, 1, 2}, 3.831, 0.01);
}

/// What they were not taken from.
TEST(RankModel, OtherDegreesAndSizesAsMeasured) {
  expect_near(k540p, {1, 2, 2}, 3.768, 0.01);
  expect_near(k540p, {1, 2, 1}, 3.699, 0.01);
  expect_near(k272p, {1, 1, 1}, 1.018, 0.03);
  expect_near(k272p, {2, 1, 2}, 0.550, 0.03);
  expect_near(k272p, {1, 2, 2}, 0.537, 0.03);
}

TEST(RankModel, WeightsAndBytes) {
  const RankPrediction one = predict_step(release(), k540p, {1, 1, 1}, network_named("nvlink"), 16);
  EXPECT_NEAR(one.weight_bytes, 228e9, 4e9);
  EXPECT_EQ(one.bytes_sent, 0);
  const RankPrediction two = predict_step(release(), k540p, {2, 1, 2}, network_named("nvlink"), 16);
  // Half of q, k, v and gate, and of the output, of half the rows in 40 layers; half of z and of y in 36.
  const double rows = 115632 / 2;
  EXPECT_NEAR(two.bytes_sent, rows * 2 * (40 * (12 * 128 * 4 + 8) + 36 * 2 * 1536), 1e8);
  EXPECT_NEAR(one.weight_bytes - two.weight_bytes, 36 * 12 * 256 * 3.0 * 256 * 1280 * 2 / 2, 1e6);
}

TEST(RankModel, ChoosesWhatFits) {
  const auto all = predict_all(release(), k540p, 8, network_named("nvlink"), 4.5, 40e9);
  EXPECT_LE(all.front().weight_bytes, 40e9);
  for (std::size_t i = 1; i < all.size(); ++i)
    EXPECT_TRUE(all[i].weight_bytes > 40e9 || all[i].seconds >= all[i - 1].seconds);
  EXPECT_GT(all.front().efficiency, 0.8);
  for (const int gpus : {16, 64})
    EXPECT_FALSE(predict_all(release(), k540p, gpus, network_named("infiniband"), 4.5, 0).empty());
}

}  // namespace
}  // namespace magi
