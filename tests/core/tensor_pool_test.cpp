// SPDX-License-Identifier: Apache-2.0
#include "core/tensor_pool.h"

#include <gtest/gtest.h>

#include "core/memory_ledger.h"

namespace magi {
namespace {

TEST(TensorPool, MemoryIsUsedAgainOnceItsLastViewIsGone) {
  TensorPool pool;
  Tensor a = pool.empty(DType::f32, {3, 1000});
  const void* memory = a.raw();
  Tensor view = a.rows(1, 1);
  a = {};
  const Tensor b = pool.empty(DType::f32, {3, 1000});
  EXPECT_NE(b.raw(), memory) << "a view of it is left";
  view = {};
  const Tensor c = pool.empty(DType::f32, {3, 1000}), d = pool.empty(DType::f32, {3, 1000});
  EXPECT_EQ(c.raw(), memory);
  EXPECT_NE(d.raw(), memory) << "it is in use again";
}

TEST(TensorPool, ShapesAndTypesOfAsManyBytesShareMemory) {
  TensorPool pool;
  const void* memory = pool.empty(DType::f32, {3, 1000}).raw();
  const TensorPool copy = pool;
  const Tensor smaller = pool.empty(DType::f32, {2, 1000});
  EXPECT_NE(smaller.raw(), memory);
  Tensor again = TensorPool(copy).empty(DType::bf16, {6, 1000});
  EXPECT_EQ(again.raw(), memory);
  EXPECT_EQ(again.dtype(), DType::bf16);
  EXPECT_EQ(again.shape(), (Shape{6, 1000}));
}

TEST(TensorPool, TensorsOutliveItAndTheLedgerKnowsAll) {
  const std::size_t before = MemoryLedger::of({}).used_bytes();
  Tensor kept;
  {
    TensorPool pool;
    kept = pool.empty(DType::u8, {5000});
    pool.empty(DType::u8, {7000});
    EXPECT_EQ(MemoryLedger::of({}).used_bytes(), before + 12000);
  }
  std::fill_n(kept.data<std::uint8_t>(), 5000, 1);
  kept = {};
  EXPECT_EQ(MemoryLedger::of({}).used_bytes(), before);
}

}  // namespace
}  // namespace magi
