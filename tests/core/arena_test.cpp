// SPDX-License-Identifier: Apache-2.0
#include "core/arena.h"

#include <gtest/gtest.h>

#include <cmath>

namespace magi {
namespace {

TEST(Arena, ReusesWhatWasGivenBack) {
  Arena arena = Arena::on_host(1 << 20);
  Tensor a = arena.alloc(DType::f32, {1000});
  void* first = a.raw();
  Tensor view = a.rows(10, 5);
  a = {};
  Tensor b = arena.alloc(DType::f32, {1000});
  EXPECT_NE(b.raw(), first) << "a view still holds the first tensor's memory";
  view = {};
  Tensor c = arena.alloc(DType::f32, {1000});
  EXPECT_EQ(c.raw(), first);
  b = {};
  c = {};
  EXPECT_EQ(arena.used_bytes(), 0u);
  EXPECT_GE(arena.alloc(DType::u8, {(1 << 20) - 1024}).bytes(), 1u) << "neighbouring free blocks merge";
}

TEST(Arena, CountingPredictsThePeak) {
  const auto work = [](Arena& arena) {
    Tensor a = arena.alloc(DType::f32, {5000});
    {
      Tensor b = arena.alloc(DType::bf16, {70001});
      a = {};
    }
    Tensor c = arena.alloc(DType::f32, {5000});
    Tensor d = arena.alloc(DType::f32, {90000});
  };
  Arena counted = Arena::counting({});
  work(counted);
  Arena real = Arena::on_host(counted.peak_bytes());
  work(real);
  EXPECT_EQ(real.peak_bytes(), counted.peak_bytes());
  EXPECT_THROW(real.alloc(DType::u8, {static_cast<std::int64_t>(real.capacity_bytes())}), Error);
}

TEST(Arena, PoisonFillsWithNaN) {
  Arena arena = Arena::on_host(1 << 16);
  arena.poison(true);
  Tensor t = arena.alloc(DType::f32, {16});
  for (float v : t.values<float>()) EXPECT_TRUE(std::isnan(v));
}

}  // namespace
}  // namespace magi
