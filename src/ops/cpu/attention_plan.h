// SPDX-License-Identifier: Apache-2.0
// Which queries see which keys, as tiles of queries and chunks of keys: the one form in which every kind of
// attention is computed. A tile walks through its chunks in order with an online softmax; memory is linear in
// tokens.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "ops/ops.h"

namespace magi {

struct AttentionPlan {
  /// Consecutive chunks [first, end).
  struct ChunkRun {
    std::int32_t first, end;
  };
  /// Up to kTileRows query rows that see the chunks of runs [first_run, end_run).
  struct QueryTile {
    std::int64_t first;
    std::int32_t rows;
    std::int32_t first_run, end_run;
    std::int32_t part = 0;  ///< of partial results
  };

  std::vector<RowRange> chunks;  ///< rows of keys
  std::vector<ChunkRun> runs;
  std::vector<QueryTile> tiles;
  bool causal = false;  ///< within a tile's chunks, later rows are hidden

  /// Cuts rows [first, end) into chunks of at most `width` keys; returns their run.
  ChunkRun add_chunks(std::int64_t first, std::int64_t end, std::int64_t width);
  /// Cuts rows [first, end) into query tiles that see the same runs.
  void add_tiles(std::int64_t first, std::int64_t end, std::int32_t first_run, std::int32_t end_run);
};

/// Keys a chunk, at most: keys and values of a chunk stay in the second-level cache.
constexpr std::int64_t chunk_keys(std::int64_t head_dim) {
  return head_dim <= 128 ? 512 : head_dim <= 256 ? 256 : 128;
}

AttentionPlan plan_samples(std::span<const RowRange> samples, bool causal, std::int64_t head_dim);
/// Window attention over `key_rows` rows of keys; see Ops::window_attention.
AttentionPlan plan_window(const WindowOptions& window, std::int64_t key_rows, std::int64_t head_dim);

/// y [n, heads·head_dim] = attention by the plan of q [n, heads·head_dim] over kv [m, 2·kv_heads·head_dim];
/// sinks and gate as the options say. y takes its rows in order, one tensor after another.
void attend(const Tensor& q, const Tensor& kv, const AttentionPlan& plan, const AttentionOptions& options,
            std::span<const Tensor> y);
/// The same, to partial results; see Ops::attention_partials.
void attend_partly(const Tensor& q, const Tensor& kv, const AttentionPlan& plan,
                   const AttentionOptions& options, Tensor& partials);

}  // namespace magi
