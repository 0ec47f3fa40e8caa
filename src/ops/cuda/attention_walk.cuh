// SPDX-License-Identifier: Apache-2.0
// What the attention kernels work on: tiles of query rows, and for each the walk over its keys, whose order
// depends on the query tile's place in the sample alone.
#pragma once

#include <cuda.h>
#include <cuda_bf16.h>

#include <algorithm>
#include <cstdint>

#include "ops/cuda/attention.h"

namespace magi::cuda {

inline constexpr int kAttentionSamples = 8;  ///< a launch
inline constexpr int kAttentionParts = 64;   ///< a launch

struct AttentionSample {
  CUtensorMap queries;      ///< Hopper: boxes of [query tile, 64]
  CUtensorMap keys;         ///< Hopper: boxes of [key tile, 64]; rows past the sample read as zeros
  std::int64_t first;       ///< query row 0 in q
  std::int64_t first_key;   ///< key row 0 in kv
  std::int32_t query_rows;  ///< > 0
  std::int32_t key_rows;    ///< > 0
  std::int32_t tiles;       ///< query tiles
};

/// The refiner's windows (window.h). Video rows come first, block by block; a block's rows are contiguous,
/// and so are those of neighbours along w.
struct AttentionWindow {
  std::int32_t grid[3], block[3], radius[3];
  std::int32_t blocks[3];    ///< ⌈grid / block⌉
  std::int32_t block_tiles;  ///< query tiles of a full block
  std::int32_t first_block;  ///< of the queries
  std::int32_t first_query;  ///< row of the grid that q begins with
  std::int32_t first_key;    ///< row of the grid that kv begins with
  std::int32_t video_keys;   ///< rows of kv that are the grid's

  __host__ __device__ int extent(int axis, int index) const {
    const int left = grid[axis] - index * block[axis];
    return left < block[axis] ? left : block[axis];
  }
  /// First row of block (t, h, w).
  __host__ __device__ int first_row(int t, int h, int w) const {
    return t * block[0] * grid[1] * grid[2] +
           extent(0, t) * (h * block[1] * grid[2] + extent(1, h) * w * block[2]);
  }
};

/// Keys of one part of partial results.
struct AttentionPart {
  std::int32_t first, rows;
};

struct AttentionParams {
  AttentionSample samples[kAttentionSamples];
  AttentionWindow window;
  AttentionPart parts[kAttentionParts];
  float* partials;  ///< [query rows, part_count, heads, head_dim + 2], from this launch's first part on
  std::int32_t part_count;  ///< of all launches
  std::int32_t part_tiles;  ///< query tiles of each part
  const void* q;            ///< but for Hopper
  std::int64_t q_pitch;
  const void* kv;  ///< but for Hopper
  std::int64_t kv_pitch;
  void* out;
  std::int64_t out_pitch;
  LaterRows later;
  const float* sinks;
  const void* gate;
  std::int64_t gate_pitch;
  std::int32_t n_sink;
  std::int32_t gate_is_bf16;
  std::int32_t gate_channels;
  std::int32_t causal;
  std::int32_t heads;
  std::int32_t kv_heads;
  std::int32_t head_dim;
  std::int32_t tiles;  ///< Σ heads·tiles
  float scale_log2;    ///< scale·log2(e)
};

/// Where a row of the result begins.
template <typename T>
__device__ __forceinline__ T* attention_result(const AttentionParams& p, std::int64_t row) {
  return static_cast<T*>(p.later.base_of(row, p.out)) + row * p.out_pitch;
}

/// A block's piece of work: a tile of query rows of one head.
struct AttentionTile {
  const AttentionSample* sample;
  int head;
  int kv_head;
  int index;  ///< query tile within the sample
};

/// Samples, then kv heads, then query tiles, then the heads that share the kv head: what runs at once reads
/// the same keys.
__device__ __forceinline__ AttentionTile attention_tile(const AttentionParams& p, int index) {
  const AttentionSample* sample = p.samples;
  while (index >= p.heads * sample->tiles) index -= p.heads * (sample++)->tiles;
  const int shared_by = p.heads / p.kv_heads;
  const int rest = index / shared_by;
  const int kv_head = rest / sample->tiles;
  return {sample, kv_head * shared_by + index % shared_by, kv_head, rest % sample->tiles};
}

/// Every key of the sample, from the last tile to the first, so that only the first tile walked is a partial
/// one.
template <int kQueries, int kKeys>
struct FullWalk {
  static constexpr bool kRagged = false;   ///< runs of keys end inside tiles
  static constexpr bool kPartial = false;  ///< what comes out is a partial result
  int row;                                 ///< first key of the tile at hand
  int remaining;  ///< keys from there to the end of their run: fewer than kKeys where the tile is partial

  __device__ __forceinline__ FullWalk(const AttentionParams& p, const AttentionTile& tile) {
    const int seen = p.causal ? (tile.index + 1) * kQueries : tile.sample->key_rows;
    const int end = min(seen, tile.sample->key_rows);
    row = (end - 1) / kKeys * kKeys;
    remaining = tile.sample->key_rows - row;
  }
  __device__ __forceinline__ bool last() const { return row == 0; }
  __device__ __forceinline__ void next() {
    row -= kKeys;
    remaining += kKeys;
  }

  __device__ __forceinline__ static int query_row(const AttentionParams&, const AttentionTile& tile) {
    return tile.index * kQueries;
  }
  __device__ __forceinline__ static int query_end(const AttentionParams&, const AttentionTile& tile) {
    return tile.sample->query_rows;
  }
};

/// Every key of one part, likewise.
template <int kQueries, int kKeys>
struct PartWalk {
  static constexpr bool kRagged = false;
  static constexpr bool kPartial = true;
  int row, remaining, first;

  __device__ __forceinline__ PartWalk(const AttentionParams& p, const AttentionTile& tile) {
    const AttentionPart part = p.parts[index(p, tile)];
    const int before = (part.rows - 1) / kKeys * kKeys;
    first = part.first;
    row = first + before;
    remaining = part.rows - before;
  }
  __device__ __forceinline__ bool last() const { return row == first; }
  __device__ __forceinline__ void next() {
    row -= kKeys;
    remaining += kKeys;
  }

  __device__ __forceinline__ static int index(const AttentionParams& p, const AttentionTile& tile) {
    return tile.index / p.part_tiles;
  }
  __device__ __forceinline__ static int query_row(const AttentionParams& p, const AttentionTile& tile) {
    return tile.index % p.part_tiles * kQueries;
  }
  __device__ __forceinline__ static int query_end(const AttentionParams&, const AttentionTile& tile) {
    return tile.sample->query_rows;
  }
};

/// The keys of a video block's window: for each (t, h) in the window the run of blocks along w, then audio
/// and text.
template <int kQueries, int kKeys>
struct WindowWalk {
  static constexpr bool kRagged = true;
  static constexpr bool kPartial = false;
  const AttentionParams& p;
  int t, h, t_end, h_begin, h_end, w_begin, w_end;  ///< window, in blocks; t == t_end: audio and text
  int row;
  int remaining;

  __device__ __forceinline__ WindowWalk(const AttentionParams& params, const AttentionTile& tile)
      : p(params) {
    int at[3];
    block_of(p, tile, at);
    t = from(0, at[0]), t_end = to(0, at[0]);
    h = h_begin = from(1, at[1]), h_end = to(1, at[1]);
    w_begin = from(2, at[2]), w_end = to(2, at[2]);
    start_run();
  }
  __device__ __forceinline__ bool last() const {
    if (remaining > kKeys) return false;
    if (t == t_end) return true;
    return t == t_end - 1 && h == h_end - 1 && p.window.video_keys == p.samples[0].key_rows;
  }
  __device__ __forceinline__ void next() {
    row += kKeys;
    remaining -= kKeys;
    if (remaining > 0) return;
    if (++h == h_end) {
      h = h_begin;
      ++t;
    }
    start_run();
  }

  __device__ __forceinline__ static int query_row(const AttentionParams& p, const AttentionTile& tile) {
    int at[3];
    block_of(p, tile, at);
    return p.window.first_row(at[0], at[1], at[2]) - p.window.first_query +
           tile.index % p.window.block_tiles * kQueries;
  }
  __device__ __forceinline__ static int query_end(const AttentionParams& p, const AttentionTile& tile) {
    int at[3];
    block_of(p, tile, at);
    return p.window.first_row(at[0], at[1], at[2]) - p.window.first_query +
           p.window.extent(0, at[0]) * p.window.extent(1, at[1]) * p.window.extent(2, at[2]);
  }

 private:
  __device__ __forceinline__ static void block_of(const AttentionParams& p, const AttentionTile& tile,
                                                  int (&at)[3]) {
    int block = p.window.first_block + tile.index / p.window.block_tiles;
    at[2] = block % p.window.blocks[2];
    block /= p.window.blocks[2];
    at[1] = block % p.window.blocks[1];
    at[0] = block / p.window.blocks[1];
  }
  __device__ __forceinline__ int from(int axis, int at) const { return max(at - p.window.radius[axis], 0); }
  __device__ __forceinline__ int to(int axis, int at) const {
    return min(at + p.window.radius[axis] + 1, p.window.blocks[axis]);
  }
  __device__ __forceinline__ void start_run() {
    const AttentionWindow& window = p.window;
    if (t == t_end) {
      row = window.video_keys;
      remaining = p.samples[0].key_rows - row;
    } else {
      row = window.first_row(t, h, w_begin) - window.first_key;
      const int cells = min(w_end * window.block[2], window.grid[2]) - w_begin * window.block[2];
      remaining = window.extent(0, t) * window.extent(1, h) * cells;
    }
  }
};

}  // namespace magi::cuda
