// SPDX-License-Identifier: Apache-2.0
// A group of one rank; shares. Several ranks: tests/ranks.
#include "comm/group.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

namespace magi {
namespace {

TEST(SoloGroup, CollectivesCopy) {
  const Group group;
  const std::vector<float> values{1, 2, 3, 4};
  const Tensor send = Tensor::of<float>(values, {2, 2});
  Tensor exchanged = Tensor::zeros(DType::f32, {2, 2}), gathered = Tensor::zeros(DType::f32, {2, 2});
  group.all_to_all(send, exchanged);
  group.all_gather(send, gathered);
  EXPECT_TRUE(std::ranges::equal(exchanged.values<float>(), values));
  EXPECT_TRUE(std::ranges::equal(gathered.values<float>(), values));
  group.broadcast(exchanged, 0);
  EXPECT_TRUE(std::ranges::equal(exchanged.values<float>(), values));
  group.barrier();
  EXPECT_EQ(group.gather_texts("a"), std::vector<std::string>{"a"});
  EXPECT_EQ(group.broadcast("text", 0), "text");
  EXPECT_EQ(group.size(), 1);
}

TEST(SoloGroup, RefusesOtherRanksAndShapes) {
  const Group group;
  const Tensor send = Tensor::zeros(DType::f32, {4});
  EXPECT_THROW(group.all_to_all(send, Tensor::zeros(DType::f32, {5})), Error);
  EXPECT_THROW(group.all_gather(send, Tensor::zeros(DType::bf16, {4})), Error);
  EXPECT_THROW(group.broadcast(send, 1), Error);
}

TEST(Share, FirstRanksTakeOneMore) {
  for (const int size : {1, 2, 3, 4, 6, 8})
    for (const std::int64_t total : {0, 1, 5, 12, 24, 115634}) {
      std::int64_t next = 0;
      for (int r = 0; r < size; ++r) {
        const Share share = share_of(total, size, r);
        EXPECT_EQ(share.first, next);
        EXPECT_TRUE(share.count == total / size || (share.count == total / size + 1 && r < total % size));
        next = share.end();
      }
      EXPECT_EQ(next, total);
    }
}

}  // namespace
}  // namespace magi
