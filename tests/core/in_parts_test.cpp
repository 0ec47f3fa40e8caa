// SPDX-License-Identifier: Apache-2.0
#include "core/in_parts.h"

#include <gtest/gtest.h>
#include <omp.h>

#include <atomic>
#include <chrono>
#include <mutex>
#include <set>
#include <thread>
#include <vector>

namespace magi {
namespace {

class InParts : public testing::TestWithParam<int> {
 protected:
  InParts() { omp_set_num_threads(GetParam()); }
  ~InParts() override { omp_set_num_threads(before_); }

 private:
  int before_ = omp_get_max_threads();
};

TEST_P(InParts, EachPartOnce) {
  for (int round = 0; round < 200; ++round)
    for (const std::int64_t count : {0, 1, 2, 7, 100}) {
      std::vector<std::atomic<int>> calls(static_cast<std::size_t>(count));
      in_parts(count, [&](std::int64_t i) { ++calls[static_cast<std::size_t>(i)]; });
      for (const auto& n : calls) ASSERT_EQ(n, 1);
    }
}

TEST_P(InParts, NoMoreThreadsThanAllowed) {
  std::mutex mutex;
  std::set<std::thread::id> ids;
  for (int round = 0; round < 50; ++round) {
    ids.clear();
    in_parts(64, [&](std::int64_t) {
      std::this_thread::sleep_for(std::chrono::microseconds(20));
      const std::lock_guard lock(mutex);
      ids.insert(std::this_thread::get_id());
    });
    ASSERT_LE(std::ssize(ids), GetParam());
  }
}

TEST_P(InParts, RangesCoverAllAndBeginAtSteps) {
  in_ranges(0, 0, [](std::int64_t, std::int64_t) { FAIL() << "nothing to do"; });
  for (const std::int64_t step : {1, 7, 40000})
    for (const std::int64_t count :
         {std::int64_t{0}, std::int64_t{5}, std::int64_t{32768}, std::int64_t{100001}}) {
      std::vector<std::atomic<char>> seen(static_cast<std::size_t>(count));
      in_ranges(count, step, [&](std::int64_t first, std::int64_t end) {
        EXPECT_EQ(first % step, 0);
        EXPECT_LE(end, count);
        for (std::int64_t i = first; i < end; ++i) ++seen[static_cast<std::size_t>(i)];
      });
      for (const auto& n : seen) ASSERT_EQ(n, 1);
    }
}

TEST_P(InParts, SeveralCallersAtOnce) {
  std::vector<std::thread> callers;
  std::atomic<std::int64_t> sum{0};
  for (int c = 0; c < 4; ++c)
    callers.emplace_back([&] {
      omp_set_num_threads(GetParam());
      for (int round = 0; round < 100; ++round) in_parts(20, [&](std::int64_t i) { sum += i; });
    });
  for (std::thread& caller : callers) caller.join();
  EXPECT_EQ(sum, 4 * 100 * 190);
}

INSTANTIATE_TEST_SUITE_P(Threads, InParts, testing::Values(4, 2, 1));

}  // namespace
}  // namespace magi
