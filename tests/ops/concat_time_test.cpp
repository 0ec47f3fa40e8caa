// SPDX-License-Identifier: Apache-2.0
#include "ops_testing.h"

namespace magi::testing {
namespace {

class ConcatTimeTest : public OpsTest {};

TEST_P(ConcatTimeTest, FramesFollowEachOther) {
  const Tensor a = random({2, 3, 2, 5}, 1), b = random({4, 3, 2, 5}, 2);
  const Tensor y = ops_->concat_time(a, b);
  ASSERT_EQ(y.shape(), (Shape{6, 3, 2, 5}));
  EXPECT_TRUE(same_bytes(y.rows(0, 2), a));
  EXPECT_TRUE(same_bytes(y.rows(2, 4), b));
  EXPECT_TRUE(same_bytes(ops_->concat_time(a.rows(0, 0), b), b));
}

TEST_P(ConcatTimeTest, RefusesOtherFrames) {
  EXPECT_THROW(ops_->concat_time(random({2, 3, 2, 5}, 1), random({2, 3, 3, 5}, 2)), Error);
  EXPECT_THROW(ops_->concat_time(random({2, 3, 2, 5}, 1), random({2, 3, 2, 4}, 2)), Error);
}

MAGI2_BOTH_DTYPES(ConcatTimeTest);

}  // namespace
}  // namespace magi::testing
