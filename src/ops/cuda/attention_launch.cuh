// SPDX-License-Identifier: Apache-2.0
// Host side of the Hopper attention kernel, for any shape of it.
#pragma once

#include <algorithm>

#include "core/error.h"
#include "ops/cuda/attention.h"
#include "ops/cuda/attention_sm90.cuh"
#include "ops/cuda/tensor_map.h"
#include "ops/ops.h"

namespace magi::cuda {

inline void attention_check(cudaError_t error, const char* what) {
  require(error == cudaSuccess, "attention kernel: {}: {}", what, cudaGetErrorString(error));
}

inline AttentionParams attention_params(const AttentionArgs& args) {
  AttentionParams params{};
  params.out = static_cast<__nv_bfloat16*>(args.out);
  params.out_pitch = args.out_pitch;
  params.sinks = args.n_sink > 0 ? args.sinks : nullptr;
  params.n_sink = static_cast<int>(args.n_sink);
  params.gate = args.gate;
  params.gate_pitch = args.gate_pitch;
  params.gate_is_bf16 = args.gate_is_bf16;
  params.heads = static_cast<int>(args.heads);
  params.kv_heads = static_cast<int>(args.kv_heads);
  params.scale_log2 = args.scale * 1.44269504f;
  return params;
}

/// Rows `queries` attend rows `keys`, in `tiles` query tiles.
template <class Shape>
AttentionSample attention_sample(const AttentionArgs& args, RowRange queries, RowRange keys,
                                 std::int64_t tiles) {
  require(keys.size() < (1 << 30) && args.heads * tiles < (1 << 27),
          "attention over {} rows and {} heads: too much for a launch", keys.size(), args.heads);
  const auto* qkv = static_cast<const __nv_bfloat16*>(args.qkv);
  const std::int64_t columns = (args.heads + 2 * args.kv_heads) * Shape::kDim;
  const auto map = [&](RowRange rows, int box_rows) {
    return bf16_tensor_map(qkv + rows.first * args.qkv_pitch, rows.size(), columns, args.qkv_pitch, box_rows);
  };
  return {map(queries, Shape::kQueries),    map(keys, Shape::kKeys),       queries.first,
          static_cast<int>(queries.size()), static_cast<int>(keys.size()), static_cast<int>(tiles)};
}

/// Enqueues the kernel on the first `count` samples.
template <class Shape>
void attention_enqueue(AttentionParams& params, int count, cudaStream_t stream) {
  constexpr int kShared = sizeof(AttentionShared<Shape>);
  params.tiles = 0;
  for (int i = 0; i < count; ++i) params.tiles += params.heads * params.samples[i].tiles;
  if (params.tiles == 0) return;
  static const int processors = [] {
    int device = 0, number = 0;
    attention_check(cudaGetDevice(&device), "current device");
    attention_check(cudaDeviceGetAttribute(&number, cudaDevAttrMultiProcessorCount, device), "device's size");
    return number;
  }();
  attention_check(
      cudaFuncSetAttribute(attention_kernel<Shape>, cudaFuncAttributeMaxDynamicSharedMemorySize, kShared),
      "shared memory");
  attention_kernel<Shape><<<std::min(processors, params.tiles), Shape::kThreads, kShared, stream>>>(params);
  attention_check(cudaGetLastError(), "launch");
}

/// Every row of a sample attends every row of it; kAttentionSamples samples a launch.
template <class Shape>
void attention_launch(const AttentionArgs& args, cudaStream_t stream) {
  AttentionParams params = attention_params(args);
  int count = 0;
  for (const RowRange& rows : args.samples) {
    if (rows.size() <= 0) continue;
    params.samples[count++] =
        attention_sample<Shape>(args, rows, rows, (rows.size() + Shape::kQueries - 1) / Shape::kQueries);
    if (count == kAttentionSamples) {
      attention_enqueue<Shape>(params, count, stream);
      count = 0;
    }
  }
  attention_enqueue<Shape>(params, count, stream);
}

/// Video rows attend their windows with shape Window; the rows behind them attend everything with shape Full.
template <class Window, class Full>
void window_attention_launch(const AttentionArgs& args, const WindowOptions& window, cudaStream_t stream) {
  require(args.samples.size() == 1, "window attention takes one sample, not {}", args.samples.size());
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
