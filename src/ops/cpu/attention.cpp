// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include "ops/cpu/attention_plan.h"
#include "ops/cpu/cpu_ops.h"
#include "ops/cpu/gemm.h"

namespace magi {

AttentionPlan::ChunkRun AttentionPlan::add_chunks(std::int64_t first, std::int64_t end, std::int64_t width) {
  const auto begin = static_cast<std::int32_t>(chunks.size());
  for (; first < end; first += width) chunks.push_back({first, std::min(first + width, end)});
  return {begin, static_cast<std::int32_t>(chunks.size())};
}

void AttentionPlan::add_tiles(std::int64_t first, std::int64_t end, std::int32_t first_run,
                              std::int32_t end_run) {
  for (; first < end; first += kTileRows) {
    tiles.push_back({first, static_cast<std::int32_t>(std::min(kTileRows, end - first)), first_run, end_run});
  }
}

AttentionPlan plan_samples(std::span<const RowRange> samples, bool causal, std::int64_t head_dim) {
  AttentionPlan plan;
  plan.causal = causal;
  const std::int64_t width = chunk_keys(head_dim);
  for (const RowRange& sample : samples) {
    const AttentionPlan::ChunkRun all = plan.add_chunks(sample.first, sample.end, width);
    if (!causal) {
      plan.runs.push_back(all);
      const auto run = static_cast<std::int32_t>(plan.runs.size());
      plan.add_tiles(sample.first, sample.end, run - 1, run);
      continue;
    }
    for (std::int64_t row = sample.first; row < sample.end; row += kTileRows) {
      const std::int64_t last = std::min(row + kTileRows, sample.end);
      plan.runs.push_back(
          {all.first, all.first + static_cast<std::int32_t>((last - 1 - sample.first) / width + 1)});
      const auto run = static_cast<std::int32_t>(plan.runs.size());
      plan.add_tiles(row, last, run - 1, run);
    }
  }
  return plan;
}

void CpuOps::do_attention(const Tensor& qkv, std::span<const RowRange> samples,
                          const AttentionOptions& options, std::span<const Tensor> y) {
  const std::int64_t q_size = options.heads * options.head_dim;
  attend(qkv.columns(0, q_size), qkv.columns(q_size, qkv.dim(1) - q_size),
         plan_samples(samples, options.causal, options.head_dim), options, y);
}

}  // namespace magi
