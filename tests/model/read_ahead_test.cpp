// SPDX-License-Identifier: Apache-2.0
#include "model/read_ahead.h"

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>

#include "support/expect_error.h"

namespace magi {
namespace {

using namespace std::chrono_literals;

/// Counts the items that exist.
struct Items {
  std::atomic<int> now{0}, most{0}, loaded{0};

  ReadAhead::Item make(int i) {
    ++loaded;
    most = std::max(most.load(), ++now);
    return {new int(i), [this](const int* p) {
              delete p;
              --now;
            }};
  }
};

int value(const ReadAhead::Item& item) {
  return *static_cast<const int*>(item.get());
}

TEST(ReadAhead, ItemsComeInTurnAndNeverMoreThanThereIsRoomFor) {
  Items items;
  for (const int room : {2, 3}) {
    ReadAhead reader({1, 4, 5}, room, 1, [&](int i) { return items.make(i); });
    for (int round = 0; round < 50; ++round)
      for (const int i : {1, 4, 5}) EXPECT_EQ(value(reader.get(i)), i);
    const auto in_use = reader.get(1);
    std::this_thread::sleep_for(5ms);
    EXPECT_EQ(items.now, room);
    EXPECT_EQ(items.most, room);
  }
  EXPECT_EQ(items.now, 0);
}

TEST(ReadAhead, AnyOrderIsServed) {
  Items items;
  ReadAhead reader({0, 1, 2, 3}, 2, 1, [&](int i) {
    std::this_thread::sleep_for(1ms);
    return items.make(i);
  });
  for (const int i : {0, 1, 0, 3, 3, 2, 1, 0, 0, 1, 2, 3, 0}) EXPECT_EQ(value(reader.get(i)), i);
  expect_error([&] { reader.get(7); }, "layer 7 is not among");
}

TEST(ReadAhead, TryingDoesNotWait) {
  Items items;
  ReadAhead reader({0, 1}, 2, 1, [&](int i) {
    std::this_thread::sleep_for(20ms);
    return items.make(i);
  });
  EXPECT_EQ(reader.try_get(0), nullptr);
  EXPECT_EQ(value(reader.get(0)), 0);
  while (!reader.try_get(1)) std::this_thread::sleep_for(1ms);
}

TEST(ReadAhead, ErrorsReachTheOneWhoAsksAndMayPass) {
  Items items;
  std::atomic<bool> broken{true};
  ReadAhead reader({0, 1, 2}, 2, 1, [&](int i) {
    if (i == 1 && broken) fail("item 1 is broken");
    return items.make(i);
  });
  EXPECT_EQ(value(reader.get(0)), 0);
  expect_error([&] { reader.get(1); }, "item 1 is broken");
  expect_error([&] { reader.get(1); }, "item 1 is broken");
  EXPECT_EQ(value(reader.get(2)), 2);
  broken = false;
  EXPECT_EQ(value(reader.get(1)), 1);
}

TEST(ReadAhead, ItemsOutliveTheReader) {
  Items items;
  ReadAhead::Item kept;
  {
    ReadAhead reader({0, 1}, 2, 1, [&](int i) { return items.make(i); });
    kept = reader.get(0);
  }
  EXPECT_EQ(value(kept), 0);
  kept.reset();
  EXPECT_EQ(items.now, 0);
}

TEST(ReadAhead, EndsWhileItReads) {
  Items items;
  for (int i = 0; i < 20; ++i)
    ReadAhead({0, 1}, 2, 1, [&](int j) {
      std::this_thread::sleep_for(1ms);
      return items.make(j);
    });
  EXPECT_EQ(items.now, 0);
}

}  // namespace
}  // namespace magi
