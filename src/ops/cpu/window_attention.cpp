// SPDX-License-Identifier: Apache-2.0
// The refiner's window attention (window.h) as a plan. Rows of a block are consecutive, blocks are in t,h,w
// order, so the window of a block is one run of chunks for each (t, h) pair of neighbours. And the attention
// of what attends everything, from partial results.
#include <algorithm>
#include <array>
#include <cmath>
#include <limits>

#include "ops/cpu/attention_plan.h"
#include "ops/cpu/cpu_ops.h"
#include "ops/cpu/softmax.h"

namespace magi {

AttentionPlan plan_window(const WindowOptions& window, std::int64_t key_rows, std::int64_t head_dim) {
  AttentionPlan plan;
  const std::int64_t width = chunk_keys(head_dim);
  const BlockGrid grid(window.grid, window.block);
  // Chunks of each block whose rows are among the keys: a chunk never spans two, so that a rank with fewer
  // blocks cuts them as one with all does.
  std::vector<AttentionPlan::ChunkRun> chunks(static_cast<std::size_t>(grid.size()));
  for (std::int64_t block = 0; block < grid.size(); ++block) {
    const RowRange rows = grid.rows({block, block + 1});
    if (rows.first < window.keys.first || rows.end > window.keys.end) continue;
    chunks[static_cast<std::size_t>(block)] =
        plan.add_chunks(rows.first - window.keys.first, rows.end - window.keys.first, width);
  }
  const AttentionPlan::ChunkRun others = plan.add_chunks(window.keys.size(), key_rows, width);

  const auto& counts = grid.counts();
  const auto low = [&](std::size_t axis, std::int64_t block) {
    return std::max<std::int64_t>(0, block - window.radius[axis]);
  };
  const auto high = [&](std::size_t axis, std::int64_t block) {
    return window.radius[axis] < counts[axis] ? std::min(counts[axis] - 1, block + window.radius[axis])
                                              : counts[axis] - 1;
  };
  const std::int64_t first_query = grid.first_row(window.blocks.first);
  for (std::int64_t block = window.blocks.first; block < window.blocks.end; ++block) {
    const std::int64_t t = block / (counts[1] * counts[2]), h = block / counts[2] % counts[1],
                       w = block % counts[2];
    const auto first_run = static_cast<std::int32_t>(plan.runs.size());
    for (std::int64_t kt = low(0, t); kt <= high(0, t); ++kt) {
      for (std::int64_t kh = low(1, h); kh <= high(1, h); ++kh) {
        plan.runs.push_back({chunks[static_cast<std::size_t>(grid.index(kt, kh, low(2, w)))].first,
                             chunks[static_cast<std::size_t>(grid.index(kt, kh, high(2, w)))].end});
      }
    }
    plan.runs.push_back(others);
    const RowRange rows = grid.rows({block, block + 1});
    plan.add_tiles(rows.first - first_query, rows.end - first_query, first_run,
                   static_cast<std::int32_t>(plan.runs.size()));
  }
  return plan;
}

void CpuOps::do_window_attention(const Tensor& q, const Tensor& kv, const WindowOptions& window,
                                 const AttentionOptions& options, Tensor& y) {
  attend(q, kv, plan_window(window, kv.dim(0), options.head_dim), options, {&y, 1});
}

void CpuOps::do_attention_partials(const Tensor& q, const Tensor& kv, std::span<const RowRange> parts,
                                   const AttentionOptions& options, Tensor& partials) {
  AttentionPlan plan;
  for (std::size_t part = 0; part < parts.size(); ++part) {
    plan.runs.push_back(plan.add_chunks(parts[part].first, parts[part].end, chunk_keys(options.head_dim)));
    const auto run = static_cast<std::int32_t>(plan.runs.size());
    const std::size_t first_tile = plan.tiles.size();
    plan.add_tiles(0, q.dim(0), run - 1, run);
    for (std::size_t i = first_tile; i < plan.tiles.size(); ++i)
      plan.tiles[i].part = static_cast<std::int32_t>(part);
  }
  attend_partly(q, kv, plan, options, partials);
}

void CpuOps::do_merge_attention(std::span<const Tensor> partials, const AttentionOptions& options,
                                Tensor& y) {
  const std::int64_t heads = options.heads, dim = options.head_dim;
  const std::vector<float> sinks = sink_logits(options.sinks, heads);
  const bool gated = options.gate.defined(), gate_per_head = gated && options.gate.dim(1) == heads;
#pragma omp parallel
  {
    std::vector<float> sum(static_cast<std::size_t>(dim) + 16);  // store_row reads whole vectors
#pragma omp for collapse(2) schedule(static)
    for (std::int64_t row = 0; row < y.dim(0); ++row) {
      for (std::int64_t head = 0; head < heads; ++head) {
        std::fill(sum.begin(), sum.end(), 0.0f);
        float highest = -std::numeric_limits<float>::infinity(), total = 0;
        for (const Tensor& tensor : partials) {
          for (std::int64_t part = 0; part < tensor.dim(1); ++part) {
            const float* values =
                tensor.data<float>() + ((row * tensor.dim(1) + part) * heads + head) * (dim + 2);
            const float top = std::max(highest, values[dim]);
            const float before = std::exp2(highest - top), now = std::exp2(values[dim] - top);
            add_scaled(sum.data(), before, values, now, dim);
            total = total * before + values[dim + 1] * now;
            highest = top;
          }
        }
        const std::byte* gate = gated ? static_cast<const std::byte*>(options.gate.raw()) +
                                            static_cast<std::size_t>(row * options.gate.pitch() +
                                                                     head * (gate_per_head ? 1 : dim)) *
                                                size_of(options.gate.dtype())
                                      : nullptr;
        const float factor = softmax_factor(highest, total, sinks[static_cast<std::size_t>(head)]);
        store_row({sum.data(), dim, factor, gate, gated ? options.gate.dtype() : DType::f32, gate_per_head},
                  static_cast<std::byte*>(y.raw()) +
                      static_cast<std::size_t>(row * y.pitch() + head * dim) * size_of(y.dtype()),
                  y.dtype());
      }
    }
  }
}

}  // namespace magi
