// SPDX-License-Identifier: Apache-2.0
#include "core/memory_ledger.h"

#include <gtest/gtest.h>

#include "core/arena.h"
#include "support/expect_error.h"

namespace magi {
namespace {

constexpr std::size_t kMiB = std::size_t{1} << 20;
constexpr auto kBytes = static_cast<std::int64_t>(3 * kMiB);

TEST(MemoryLedger, CountsTensorsUntilTheirLastView) {
  MemoryLedger& host = MemoryLedger::of({});
  const std::size_t before = host.used_bytes();
  host.reset_peak();
  Tensor view;
  {
    const Tensor whole = Tensor::empty(DType::u8, {kBytes});
    view = whole.rows(0, 1);
  }
  EXPECT_EQ(host.used_bytes(), before + 3 * kMiB);
  view = {};
  EXPECT_EQ(host.used_bytes(), before);
  EXPECT_EQ(host.peak_bytes(), before + 3 * kMiB);
  host.reset_peak();
  EXPECT_EQ(host.peak_bytes(), before);
}

TEST(MemoryLedger, WhatTheMachineLacksIsRefusedBeforeItIsTouched) {
  MemoryLedger& host = MemoryLedger::of({});
  const std::size_t before = host.used_bytes(), there = available_host_bytes();
  ASSERT_GT(there, 0u);
  expect_error([&] { Tensor::empty(DType::u8, {2 * static_cast<std::int64_t>(there)}); }, "out of memory");
  expect_error([&] { Tensor::empty(DType::u8, {std::int64_t{1} << 60}); }, "MiB are free");
  EXPECT_EQ(host.used_bytes(), before);
}

TEST(MemoryLedger, LimitsAreKept) {
  MemoryLedger& host = MemoryLedger::of({});
  const std::size_t before = host.used_bytes();
  host.set_limit(before + 2 * kMiB);
  expect_error([] { Tensor::empty(DType::u8, {kBytes}); }, "the memory budget is spent");
  EXPECT_EQ(host.used_bytes(), before);
  EXPECT_NO_THROW(Tensor::empty(DType::u8, {kBytes / 2}));
  host.set_limit(MemoryLedger::kNoLimit);
  EXPECT_NO_THROW(Tensor::empty(DType::u8, {kBytes}));
}

TEST(MemoryLedger, HostArenasCountWhatTheyTouched) {
  MemoryLedger& host = MemoryLedger::of({});
  const std::size_t before = host.used_bytes();
  Arena arena = Arena::on_host(std::size_t{1} << 40);
  EXPECT_EQ(host.used_bytes(), before);
  { const Tensor scratch = arena.alloc(DType::u8, {kBytes}); }
  EXPECT_GE(host.used_bytes(), before + 3 * kMiB);  // its pages stay until trim()
  arena.trim();
  EXPECT_EQ(host.used_bytes(), before);
  host.set_limit(before + 2 * kMiB);
  expect_error([&] { arena.alloc(DType::u8, {kBytes}); }, "the memory budget is spent");
  host.set_limit(MemoryLedger::kNoLimit);
  EXPECT_NO_THROW(arena.alloc(DType::u8, {kBytes})) << "a refused tensor leaves its place free";
  EXPECT_EQ(arena.used_bytes(), 0U);
}

TEST(MemoryLedger, AmountsAreToldInTheUnitThatFits) {
  EXPECT_EQ(memory_text(0), "0.00 MiB");
  EXPECT_EQ(memory_text(kMiB * 5 / 2), "2.50 MiB");
  EXPECT_EQ(memory_text(640 * kMiB), "640 MiB");
  EXPECT_EQ(memory_text(1536 * kMiB), "1.50 GiB");
}

TEST(MemoryLedger, DevicesHaveTheirOwn) {
  const Device device{Device::Kind::cuda, 63};
  MemoryLedger& ledger = MemoryLedger::of(device);
  {
    LedgerEntry entry(device, 5);
    const LedgerEntry moved = std::move(entry);
    EXPECT_EQ(ledger.used_bytes(), 5U);
    EXPECT_EQ(MemoryLedger::of({Device::Kind::cuda, 62}).used_bytes(), 0U);
  }
  EXPECT_EQ(ledger.used_bytes(), 0U);
}

}  // namespace
}  // namespace magi
