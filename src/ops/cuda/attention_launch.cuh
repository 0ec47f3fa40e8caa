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
#include "ops/ops.h"

namespace magi::cuda {

inline AttentionParams attention_params(const AttentionArgs& args) {
  AttentionParams params{};
  params.qkv = args.qkv;
  params.qkv_pitch = args.qkv_pitch;
  params.out = args.out;
  params.out_pitch = args.out_pitch;
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

/// Video rows attend their windows by kernel Window; the rows behind them attend everything by kernel Full.
template <class Window, class Full>
void window_attention_launch(const AttentionArgs& args, const WindowOptions& window, cudaStream_t stream) {
  require(args.samples.size() == 1, "window attention takes one sample, not {}", args.samples.size());
  require(!args.causal, "window attention is not causal");
  const RowRange all = args.samples[0];
  const std::int64_t video = window.grid[0] * window.grid[1] * window.grid[2];
  require(video <= all.size(), "window attention: a grid of {} cells, but {} rows", video, all.size());
  AttentionParams params = attention_params(args);
  if (video > 0) {
    std::int64_t tiles = 1, block_rows = 1;
    for (int axis = 0; axis < 3; ++axis) {
      const std::int64_t block = std::min(window.block[axis], window.grid[axis]);
      const std::int64_t blocks = (window.grid[axis] + block - 1) / block;
      params.window.grid[axis] = static_cast<int>(window.grid[axis]);
      params.window.block[axis] = static_cast<int>(block);
      params.window.blocks[axis] = static_cast<int>(blocks);
      params.window.radius[axis] = static_cast<int>(std::min(window.radius[axis], blocks));
      tiles *= blocks;
      block_rows *= block;
    }
    params.window.block_tiles = static_cast<int>((block_rows + Window::kQueries - 1) / Window::kQueries);
    params.window.video_rows = static_cast<int>(video);
    params.samples[0] = attention_sample<Window>(args, {all.first, all.first + video}, all,
                                                 tiles * params.window.block_tiles);
    attention_enqueue<Window>(params, 1, stream);
  }
  const RowRange rest{all.first + video, all.end};
  if (rest.size() > 0) {
    params.samples[0] =
        attention_sample<Full>(args, rest, all, (rest.size() + Full::kQueries - 1) / Full::kQueries);
    attention_enqueue<Full>(params, 1, stream);
  }
}

}  // namespace magi::cuda
