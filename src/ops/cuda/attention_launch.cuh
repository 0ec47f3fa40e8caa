// SPDX-License-Identifier: Apache-2.0
// Host side of the attention kernels. A kernel is described by a type with
//   kQueries, the rows of a query tile;
//   sample(args, queries, keys), which fills what only that kernel needs of AttentionSample;
//   launch(params, stream), which enqueues params.tiles tiles.
#pragma once

#include <algorithm>

#include "core/error.h"
#include "ops/cuda/attention.h"
#include "ops/cuda/attention_walk.cuh"
#include "ops/cuda/launch.cuh"
#include "ops/window.h"

namespace magi::cuda {

inline AttentionParams attention_params(const AttentionArgs& args) {
  AttentionParams params{};
  params.q = args.q;
  params.q_pitch = args.q_pitch;
  params.kv = args.kv;
  params.kv_pitch = args.kv_pitch;
  params.out = args.out;
  params.out_pitch = args.out_pitch;
  params.later = args.later;
  params.sinks = args.n_sink > 0 ? args.sinks : nullptr;
  params.n_sink = static_cast<int>(args.n_sink);
  params.gate = args.gate;
  params.gate_pitch = args.gate_pitch;
  params.gate_is_bf16 = args.gate_is_bf16;
  params.gate_channels = args.gate != nullptr && args.gate_channels;
  params.causal = args.causal;
  params.heads = static_cast<int>(args.heads);
  params.kv_heads = static_cast<int>(args.kv_heads);
  params.head_dim = static_cast<int>(args.head_dim);
  params.scale_log2 = args.scale * 1.44269504f;
  return params;
}

/// Rows `queries` attend rows `keys`, in `tiles` query tiles.
template <class Kernel>
AttentionSample attention_sample(const AttentionArgs& args, RowRange queries, RowRange keys,
                                 std::int64_t tiles) {
  require(keys.size() < (1 << 30) && args.heads * tiles < (1 << 27),
          "attention over {} rows and {} heads: too much for a launch", keys.size(), args.heads);
  AttentionSample sample = Kernel::sample(args, queries, keys);
  sample.first = queries.first;
  sample.first_key = keys.first;
  sample.query_rows = static_cast<int>(queries.size());
  sample.key_rows = static_cast<int>(keys.size());
  sample.tiles = static_cast<int>(tiles);
  return sample;
}

/// Enqueues the kernel on the first `count` samples.
template <class Kernel>
void attention_enqueue(AttentionParams& params, int count, cudaStream_t stream) {
  params.tiles = 0;
  for (int i = 0; i < count; ++i) params.tiles += params.heads * params.samples[i].tiles;
  if (params.tiles == 0) return;
  Kernel::launch(params, stream);
}

/// Every row of a sample attends every row of it (or those up to itself); kAttentionSamples samples a launch.
template <class Kernel>
void attention_launch(const AttentionArgs& args, cudaStream_t stream) {
  AttentionParams params = attention_params(args);
  int count = 0;
  for (const RowRange& rows : args.samples) {
    if (rows.size() <= 0) continue;
    const std::int64_t tiles = (rows.size() + Kernel::kQueries - 1) / Kernel::kQueries;
    params.samples[count++] = attention_sample<Kernel>(args, rows, rows, tiles);
    if (count == kAttentionSamples) {
      attention_enqueue<Kernel>(params, count, stream);
      count = 0;
    }
  }
  attention_enqueue<Kernel>(params, count, stream);
}

/// Blocks of video rows attend their windows.
template <class Kernel>
void window_attention_launch(const AttentionArgs& args, const WindowOptions& window, cudaStream_t stream) {
  require(args.samples.size() == 1 && args.samples[0].first == 0, "window attention takes one sample, not {}",
          args.samples.size());
  require(!args.causal, "window attention is not causal");
  const RowRange keys = args.samples[0];
  const BlockGrid grid(window.grid, window.block);
  require(window.keys.size() <= keys.size() && grid.first_row(grid.size()) < (1 << 30),
          "window attention: {} video keys of {} rows", window.keys.size(), keys.size());
  AttentionParams params = attention_params(args);
  std::int64_t block_rows = 1;
  for (int axis = 0; axis < 3; ++axis) {
    const std::int64_t block = std::min(window.block[axis], window.grid[axis]);
    block_rows *= block;
    params.window.grid[axis] = static_cast<int>(window.grid[axis]);
    params.window.block[axis] = static_cast<int>(block);
    params.window.blocks[axis] = static_cast<int>(grid.counts()[axis]);
    params.window.radius[axis] = static_cast<int>(std::min(window.radius[axis], grid.counts()[axis]));
  }
  const RowRange queries = grid.rows(window.blocks);
  params.window.block_tiles = static_cast<int>((block_rows + Kernel::kQueries - 1) / Kernel::kQueries);
  params.window.first_block = static_cast<int>(window.blocks.first);
  params.window.first_query = static_cast<int>(queries.first);
  params.window.first_key = static_cast<int>(window.keys.first);
  params.window.video_keys = static_cast<int>(window.keys.size());
  if (queries.size() == 0) return;
  params.samples[0] = attention_sample<Kernel>(args, {0, queries.size()}, keys,
                                               window.blocks.size() * params.window.block_tiles);
  attention_enqueue<Kernel>(params, 1, stream);
}

/// The rows of the sample attend each part of the keys; kAttentionParts parts a launch.
template <class Kernel>
void attention_partials_launch(const AttentionArgs& args, std::span<const RowRange> parts, float* partials,
                               cudaStream_t stream) {
  require(args.samples.size() == 1 && args.samples[0].first == 0,
          "partial attention takes one sample, not {}", args.samples.size());
  require(!args.causal, "partial attention is not causal");
  const RowRange queries = args.samples[0];
  std::int64_t key_rows = 0;
  for (const RowRange& part : parts) key_rows = std::max(key_rows, part.end);
  AttentionParams params = attention_params(args);
  params.sinks = nullptr;
  params.gate = nullptr;
  params.part_count = static_cast<int>(parts.size());
  params.part_tiles = static_cast<int>((queries.size() + Kernel::kQueries - 1) / Kernel::kQueries);
  for (std::size_t first = 0; first < parts.size(); first += kAttentionParts) {
    const auto some = parts.subspan(first, std::min<std::size_t>(kAttentionParts, parts.size() - first));
    for (std::size_t i = 0; i < some.size(); ++i)
      params.parts[i] = {static_cast<int>(some[i].first), static_cast<int>(some[i].size())};
    params.partials = partials + static_cast<std::int64_t>(first) * args.heads * (args.head_dim + 2);
    params.samples[0] = attention_sample<Kernel>(args, queries, {0, key_rows},
                                                 static_cast<std::int64_t>(some.size()) * params.part_tiles);
    attention_enqueue<Kernel>(params, 1, stream);
  }
}

}  // namespace magi::cuda
