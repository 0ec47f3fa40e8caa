// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

#include "comm/group.h"

namespace magi {
namespace {

TEST(SoloGroup, CollectivesCopy) {
  const auto group = make_solo_group();
  const std::vector<float> values{1, 2, 3, 4};
  const Tensor send = Tensor::of<float>(values, {2, 2});
  Tensor exchanged = Tensor::zeros(DType::f32, {2, 2}), gathered = Tensor::zeros(DType::f32, {2, 2});
  group->all_to_all(send, exchanged);
  group->all_gather(send, gathered);
  EXPECT_TRUE(std::ranges::equal(exchanged.values<float>(), values));
  EXPECT_TRUE(std::ranges::equal(gathered.values<float>(), values));
  group->broadcast(exchanged, 0);
  group->barrier();
  EXPECT_TRUE(group->any(true));
  EXPECT_FALSE(group->any(false));
  EXPECT_EQ(group->size(), 1);
  EXPECT_EQ(group->bytes_sent(), 0);
}

TEST(SoloGroup, RefusesOtherRanksAndShapes) {
  const auto group = make_solo_group();
  const Tensor send = Tensor::zeros(DType::f32, {4});
  EXPECT_THROW(group->all_to_all(send, Tensor::zeros(DType::f32, {5})), Error);
  EXPECT_THROW(group->all_gather(send, Tensor::zeros(DType::bf16, {4})), Error);
  EXPECT_THROW(group->broadcast(send, 1), Error);
}

}  // namespace
}  // namespace magi
