// SPDX-License-Identifier: Apache-2.0
#include "model/latent_passage.h"

#include <gtest/gtest.h>

#include <numeric>

#include "support/backend.h"
#include "support/golden.h"

namespace magi {
namespace {

/// All values different.
Tensor counted(const Shape& shape, float from = 0) {
  Tensor t = Tensor::empty(DType::f32, shape);
  std::iota(t.data<float>(), t.data<float>() + t.numel(), from);
  return t;
}

/// A way through all cells that jumps; their number must not be a multiple of 7.
std::vector<std::int32_t> jumping_order(std::int64_t cells) {
  std::vector<std::int32_t> order(static_cast<std::size_t>(cells));
  for (std::int64_t i = 0; i < cells; ++i)
    order[static_cast<std::size_t>(i)] = static_cast<std::int32_t>(i * 7 % cells);
  return order;
}

TEST(LatentCells, EachValueGoesToItsPlace) {
  // Less than a tile, tiles and a rest, more than one thread.
  for (const Shape& shape : {Shape{3, 1, 2, 2}, Shape{5, 3, 9, 10}, Shape{24, 5, 100, 93}}) {
    const LatentGrid grid{shape[1], shape[2], shape[3]};
    const Tensor latent = counted(shape);
    const auto jumping = jumping_order(grid.cells());
    for (const auto& order : {std::vector<std::int32_t>{}, jumping}) {
      const Tensor cells = cells_from_latent(latent, order);
      ASSERT_EQ(cells.shape(), (Shape{grid.cells(), shape[0]}));
      for (std::int64_t i = 0; i < grid.cells(); ++i)
        for (std::int64_t c = 0; c < shape[0]; ++c)
          ASSERT_EQ(
              cells.data<float>()[i * shape[0] + c],
              latent
                  .data<float>()[c * grid.cells() + (order.empty() ? i : order[static_cast<std::size_t>(i)])])
              << "row " << i << ", channel " << c;
      EXPECT_EQ(max_abs_diff(latent_from_cells(cells, grid, order), latent), 0);
      // Columns of a wider matrix, as several ranks' results are.
      Tensor wide = Tensor::zeros(DType::f32, {grid.cells(), shape[0] + 3});
      for (std::int64_t i = 0; i < grid.cells(); ++i)
        std::copy_n(cells.data<float>() + i * shape[0], shape[0],
                    wide.data<float>() + i * (shape[0] + 3) + 2);
      EXPECT_EQ(max_abs_diff(latent_from_cells(wide.columns(2, shape[0]), grid, order), latent), 0);
    }
  }
  Tensor misfit = Tensor::empty(DType::f32, {4, 3});
  EXPECT_THROW(cells_from_latent(counted({3, 1, 2, 3}), {}, misfit), Error);
  EXPECT_THROW(latent_from_cells(misfit, {1, 2, 3}, {}), Error);
}

TEST(LatentPassage, ThereAndBackStepAfterStep) {
  Arena arena = test_arena();
  const auto ops = make_ops(arena);
  LatentPassage passage(*ops);
  const LatentGrid grid{2, 9, 10};
  const auto order = jumping_order(grid.cells());
  std::vector<Tensor> back;
  for (int step = 0; step < 3; ++step) {
    const Tensor latent = counted({5, 2, 9, 10}, static_cast<float>(1000 * step));
    const Tensor cells = passage.to_cells(latent, order);
    EXPECT_EQ(max_abs_diff(ops->download(cells), cells_from_latent(latent, order)), 0);
    back.push_back(passage.to_host(cells, grid, order));
  }
  for (int step = 0; step < 3; ++step)  // none was written again
    EXPECT_EQ(max_abs_diff(back[static_cast<std::size_t>(step)],
                           counted({5, 2, 9, 10}, static_cast<float>(1000 * step))),
              0);
  // Another size takes other memory.
  const Tensor larger = counted({5, 3, 9, 10});
  EXPECT_EQ(max_abs_diff(passage.to_host(passage.to_cells(larger, {}), {3, 9, 10}, {}), larger), 0);
}

}  // namespace
}  // namespace magi
