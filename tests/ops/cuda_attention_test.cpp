// SPDX-License-Identifier: Apache-2.0
// Attention on the GPU: any head size, results on several tensors, windows, partial results.
#include "cuda_ops_testing.h"

namespace magi::testing {
namespace {

using CudaAttentionTest = CudaOpsTest;

TEST_P(CudaAttentionTest, Attention) {
  struct Case {
    int heads, kv_heads, dim;
    bool causal;
    int gate;  ///< 0, 1 a head, 2 a channel
  };
  for (const Case& c : {Case{6, 2, 128, false, 1},
                        {4, 4, 128, true, 0},
                        {4, 2, 256, true, 2},
                        {3, 1, 24, false, 2},
                        {4, 2, 96, false, 2},
                        {2, 1, 40, true, 0},
                        {2, 2, 200, false, 1},
                        {3, 3, 20, false, 0},
                        {2, 2, 16, true, 1},
                        {1, 1, 640, false, 0}}) {
    const int rows = 203;
    const Tensor qkv = random({rows, (c.heads + 2 * c.kv_heads) * c.dim}),
                 gate = random({rows, c.gate == 2 ? c.heads * c.dim : c.heads}),
                 sinks = random_f32({2, c.heads});
    const std::vector<RowRange> samples{{0, 130}, {130, 130}, {130, 131}, {131, rows}};
    compare(
        [&](Ops& ops, const Put& put) -> std::vector<Tensor> {
          AttentionOptions o;
          o.heads = c.heads;
          o.kv_heads = c.kv_heads;
          o.head_dim = c.dim;
          o.causal = c.causal;
          if (c.gate) o.gate = put(gate);
          if (c.heads > 2) o.sinks = put(sinks);
          return {ops.attention(put(qkv), samples, o)};
        },
        3e-6, 8e-3);
  }
}

/// On several matrices' rows, as on other GPUs; of each kernel.
TEST_P(CudaAttentionTest, ResultsSpreadOverTensors) {
  constexpr std::int64_t kRows = 203;
  const std::int64_t sizes[] = {7, 0, 120, 76};
  for (const int dim : {128, 64, 24, 20}) {
    const Tensor qkv = random({kRows, 4 * dim}), gate = random({kRows, 2}), space = random({kRows, 3 * dim});
    const std::vector<RowRange> samples{{0, 130}, {130, kRows}};
    const auto attend = [&](bool spread) {
      return [&, spread](Ops& ops, const Put& put) -> std::vector<Tensor> {
        AttentionOptions o;
        o.heads = 2;
        o.kv_heads = 1;
        o.head_dim = dim;
        o.gate = put(gate);
        std::vector<Tensor> y;
        for (const std::int64_t rows : sizes) y.push_back(put(space).rows(0, rows).columns(dim, 2 * dim));
        if (spread) {
          ops.attention_into(put(qkv), samples, o, y);
          return y;
        }
        const Tensor whole = ops.attention(put(qkv), samples, o);
        std::int64_t row = 0;
        for (Tensor& part : y) {
          part = whole.rows(row, part.dim(0));
          row += part.dim(0);
        }
        return y;
      };
    };
    const auto spread = on_gpu(attend(true)), whole = on_gpu(attend(false));
    for (std::size_t i = 0; i < whole.size(); ++i) EXPECT_TRUE(same_bytes(spread[i], whole[i])) << dim;
  }
}

TEST_P(CudaAttentionTest, WindowAttention) {
  for (const int dim : {128, 64, 48, 12}) {
    const auto window = WindowOptions::whole({5, 6, 7}, {2, 2, 3}, {1, 1, 1});
    const BlockGrid grid(window.grid, window.block);
    const std::int64_t video = window.keys.end, others = 13, q_size = 2 * dim;
    const Tensor qkv = random({video + others, 4 * dim}), gate = random({video + others, 2}),
                 sinks = random_f32({2, 2});
    const auto options = [&](const Put& put, RowRange rows) {
      AttentionOptions o;
      o.heads = 2;
      o.kv_heads = 1;
      o.head_dim = dim;
      o.gate = put(gate).rows(rows.first, rows.size());
      o.sinks = put(sinks);
      return o;
    };
    // A share of the blocks, with the keys that they reach.
    const auto windows = [&](RowRange blocks) {
      return [&, blocks](Ops& ops, const Put& put) -> std::vector<Tensor> {
        WindowOptions share = window;
        share.blocks = blocks;
        share.keys = grid.reach(blocks, window.radius);
        const RowRange rows = grid.rows(blocks);
        const Tensor all = put(qkv), from = all.columns(q_size, 2 * dim);
        Tensor kv = ops.arena().alloc(qkv.dtype(), {share.keys.size() + others, 2 * dim});
        ops.copy(kv.rows(0, share.keys.size()), from.rows(share.keys.first, share.keys.size()));
        ops.copy(kv.rows(share.keys.size(), others), from.rows(video, others));
        Tensor y = ops.arena().alloc(qkv.dtype(), {rows.size(), q_size});
        ops.window_attention(all.columns(0, q_size).rows(rows.first, rows.size()), kv, share,
                             options(put, rows), y);
        return {y};
      };
    };
    compare(windows(window.blocks), 3e-6, 8e-3);
    const Tensor whole = on_gpu(windows(window.blocks)).front();
    for (const RowRange blocks : {RowRange{0, 7}, RowRange{7, 8}, RowRange{8, grid.size()}}) {
      const RowRange rows = grid.rows(blocks);
      EXPECT_TRUE(same_bytes(on_gpu(windows(blocks)).front(), whole.rows(rows.first, rows.size())))
          << "blocks " << blocks.first << " to " << blocks.end;
    }
    // What attends everything: the parts in one tensor or in several, each row with others or alone.
    const auto parted = [&](std::vector<std::size_t> cuts, RowRange rows) {
      return [&, cuts, rows](Ops& ops, const Put& put) -> std::vector<Tensor> {
        std::vector<RowRange> parts;
        for (const RowRange& blocks : window_parts(grid.size())) parts.push_back(grid.rows(blocks));
        parts.push_back({video, video + others});
        const Tensor all = put(qkv), kv = all.columns(q_size, 2 * dim),
                     q = all.columns(0, q_size).rows(rows.first, rows.size());
        std::vector<Tensor> partials;
        std::size_t first = 0;
        std::vector<std::size_t> ends = cuts;
        ends.push_back(parts.size());
        for (const std::size_t end : ends) {
          partials.push_back(ops.attention_partials(q, kv, std::span(parts).subspan(first, end - first),
                                                    options(put, rows)));
          first = end;
        }
        Tensor y = ops.arena().alloc(qkv.dtype(), {rows.size(), q_size});
        ops.merge_attention(partials, options(put, rows), y);
        return {y};
      };
    };
    const RowRange text{video, video + others};
    compare(parted({}, text), 3e-6, 8e-3);
    const Tensor merged = on_gpu(parted({}, text)).front();
    EXPECT_TRUE(same_bytes(on_gpu(parted({1, 1, 17}, text)).front(), merged));
    EXPECT_TRUE(same_bytes(on_gpu(parted({20}, {video + 7, video + 8})).front(), merged.rows(7, 1)));
  }
}

INSTANTIATE_TEST_SUITE_P(Gpu, CudaAttentionTest, ::testing::Values(DType::f32, DType::bf16),
                         [](const auto& info) { return std::string(name_of(info.param)); });

}  // namespace
}  // namespace magi::testing
