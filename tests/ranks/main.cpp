// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include "ranks/ranks_testing.h"

namespace {

std::shared_ptr<magi::World>& current() {
  static std::shared_ptr<magi::World> world;
  return world;
}

}  // namespace

magi::World& magi::world() {
  return *current();
}

/// A rank whose test failed ends the others, which may wait for it.
class EndAllRanks final : public testing::EmptyTestEventListener {
  void OnTestEnd(const testing::TestInfo& info) override {
    if (info.result()->Failed()) {
      magi::world().fail(fmt::format("the test {}.{} failed", info.test_suite_name(), info.name()));
      std::exit(1);
    }
  }
};

int main(int argc, char** argv) {
  testing::InitGoogleTest(&argc, argv);
  const bool listing = testing::FLAGS_gtest_list_tests;
  current() = listing ? magi::World::join({}) : magi::World::join();
  if (magi::world().rank() > 0)
    delete testing::UnitTest::GetInstance()->listeners().Release(
        testing::UnitTest::GetInstance()->listeners().default_result_printer());
  testing::UnitTest::GetInstance()->listeners().Append(new EndAllRanks);
  const int result = RUN_ALL_TESTS();
  if (result == 0) magi::world().leave();
  current().reset();
  return result;
}
