// SPDX-License-Identifier: Apache-2.0
// Linear layers on Hopper where a library's product would be followed by a pass of its own (gated epilogues)
// or be several, one for each run of rows of a weight group. A tile is 192 rows of one weight group × 256
// columns. One producer thread streams 64 of K at a time of rows and weights (bulk tensor copies); three
// consumer warpgroups multiply (wgmma, f32 accumulators) and finish in registers, where a thread holds gate
// and linear part, interleaved columns, side by side. Blocks stay and take tile after tile, so that copies
// for the next run under the finishing of the last.
//
// Long runs are bound by the card's power, so by bytes moved. Two blocks, a cluster, take tiles one above the
// other, and each copies half of the weights for both. And tiles are handed out in order: with shares fixed
// beforehand the multiprocessors drift apart over thousands of tiles, until none finds in L2 what others
// read.
#include <algorithm>

#include "ops/cuda/cluster.cuh"
#include "ops/cuda/gated.cuh"
#include "ops/cuda/hopper.h"
#include "ops/cuda/linear_sm90.h"
#include "ops/cuda/tensor_map.h"

namespace magi::cuda {
namespace {

using namespace magi::sm90;

constexpr int kConsumers = 3, kThreads = (kConsumers + 1) * kWarpgroup;
[[maybe_unused]] constexpr int kWarps = kConsumers * 4;  // of consumers
constexpr int kTileRows = 64 * kConsumers, kTileColumns = 256, kDepth = 64;
constexpr int kStages = 4, kCluster = 2;
/// Rows of a cluster's tile, and such tiles that walk the columns together: their inputs stay in L2 while the
/// weights come by once.
constexpr int kClusterRows = kCluster * kTileRows, kBand = 4;
constexpr std::uint32_t kStepBytes = (kTileRows + kTileColumns) * kDepth * 2;

struct Shared {
  alignas(1024) unsigned char x[kStages][kTileRows * kDepth * 2];
  alignas(1024) unsigned char w[kStages][kTileColumns * kDepth * 2];
  std::uint64_t full[kStages], empty[kStages];
  std::uint64_t tile_full, tile_empty;  ///< tile_empty: of the cluster's first block, which fetches for all
  int tile;                             ///< that is next
};
constexpr std::size_t kSharedBytes = sizeof(Shared) + 1024;  ///< 1 KB to align the tiles by

struct LinearArgs {
  CUtensorMap x, weight;
  Bf16* y;  ///< [rows, out], gated [rows, out/2]
  std::int64_t y_pitch;
  int in, out;                  ///< out: columns of the product
  int row_tiles, column_tiles;  ///< of clusters
  int* handed_out;              ///< tiles so far; zero between launches
  RowGroups runs;
};

/// Where a block's part of its cluster's tile lies: `rows` rows (none where not positive) within one run of
/// one weight group.
struct TilePlace {
  int first, rows, column, weight_row;

  __device__ __forceinline__ TilePlace(const LinearArgs& a, int tile) {
    const int band = tile / (kBand * a.column_tiles), in_band = tile - band * kBand * a.column_tiles;
    const int band_rows = min(kBand, a.row_tiles - band * kBand);
    column = in_band / band_rows * kTileColumns;
    int row_tile = band * kBand + in_band % band_rows, begin = 0, run = 0;
    for (; run + 1 < a.runs.count; ++run) {
      const int tiles = (a.runs.end[run] - begin + kClusterRows - 1) / kClusterRows;
      if (row_tile < tiles) break;
      row_tile -= tiles;
      begin = a.runs.end[run];
    }
    first = begin + row_tile * kClusterRows + static_cast<int>(cluster_rank()) * kTileRows;
    rows = min(kTileRows, a.runs.end[run] - first);
    weight_row = a.runs.group[run] * a.out + column;
  }
};

/// Fetches tiles for the cluster, one ahead of those that are read; one thread of its first block.
[[maybe_unused]] __device__ __forceinline__ void hand_out(Shared& s, const LinearArgs& a) {
  const int tiles = a.row_tiles * a.column_tiles, clusters = static_cast<int>(gridDim.x) / kCluster;
  for (std::uint32_t parity = 1;; parity ^= 1) {
    barrier_wait(&s.tile_empty, parity);
    const int tile = atomicAdd(a.handed_out, 1);
    for (unsigned block = 0; block < kCluster; ++block) send_word(block, &s.tile, &s.tile_full, tile);
    if (tile == tiles + clusters - 1) *a.handed_out = 0;  // every cluster gets one that does not exist
    if (tile >= tiles) return;
  }
}

/// f(place) for each tile that is handed out, in a warp of consumers or the producer thread.
template <bool kProducer, typename F>
__device__ __forceinline__ void each_tile(Shared& s, const LinearArgs& a, const F& f) {
  for (std::uint32_t parity = 0;; parity ^= 1) {
    barrier_wait(&s.tile_full, parity);
    int tile = 0;
    if (kProducer || threadIdx.x % 32 == 0) {
      tile = *static_cast<volatile int*>(&s.tile);
      if (kProducer) barrier_expect(&s.tile_full, sizeof(int));  // of the next
      barrier_arrive_at(0, &s.tile_empty);
    }
    if (!kProducer) tile = __shfl_sync(~0u, tile, 0);
    if (tile >= a.row_tiles * a.column_tiles) return;
    f(TilePlace(a, tile));
  }
}

[[maybe_unused]] __device__ __forceinline__ void produce(Shared& s, const LinearArgs& a) {
  constexpr int kPart = kTileColumns / kCluster;  // columns whose weights this block copies
  const int part = static_cast<int>(cluster_rank()) * kPart;
  Ring<kStages> ring;
  each_tile<true>(s, a, [&](const TilePlace& place) {
    for (int k = 0; k < a.in; k += kDepth) {
      barrier_wait(&s.empty[ring.stage], ring.parity ^ 1);
      barrier_expect(&s.full[ring.stage], kStepBytes);
      load_box(&a.x, &s.full[ring.stage], s.x[ring.stage], k, place.first);
      load_box_to((1 << kCluster) - 1, &a.weight, &s.full[ring.stage], s.w[ring.stage] + part * kDepth * 2, k,
                  place.weight_row + part);
      ring.next();
    }
  });
}

/// The 8 neighbours that a thread stores: `part` counts 32 columns of y, of which a quad has 8 each. d is the
/// accumulator of the row, v[4j], v[4j + 1] its columns 8j + 2·(lane % 4) and the next.
template <Epilogue kEpilogue>
__device__ __forceinline__ uint4 finished(const float* d, int part) {
  std::uint32_t words[4];
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    if constexpr (kEpilogue == Epilogue::none) {
      const float* v = d + (part * 4 + i) * 4;
      words[i] = pack_bf16(v[0], v[1]);
    } else {
      const float* v = d + (part * 8 + 2 * i) * 4;
      words[i] =
          pack_bf16(gated<kEpilogue, Bf16>(v[0], v[1], true), gated<kEpilogue, Bf16>(v[4], v[5], true));
    }
  }
  transpose_quad(words);
  if constexpr (!kIsGated<kEpilogue>) return make_uint4(words[0], words[1], words[2], words[3]);
  // words[i]: columns i and 4 + i
  return make_uint4(__byte_perm(words[0], words[1], 0x5410), __byte_perm(words[2], words[3], 0x5410),
                    __byte_perm(words[0], words[1], 0x7632), __byte_perm(words[2], words[3], 0x7632));
}

/// A warpgroup's 64 rows of a tile: d is of row lane/4 of the warp's 16 and, two elements on, of the row 8
/// below.
template <Epilogue kEpilogue>
__device__ __forceinline__ void write(const LinearArgs& a, const TilePlace& place, const float (&d)[128],
                                      int warpgroup) {
  constexpr int kShrink = kIsGated<kEpilogue> ? 2 : 1;
  const int lane = threadIdx.x % 32, warp = threadIdx.x % kWarpgroup / 32;
  const int width = a.out / kShrink, column = place.column / kShrink + lane % 4 * 8;
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int row = warpgroup * 64 + warp * 16 + half * 8 + lane / 4;
    Bf16* y = a.y + (place.first + row) * a.y_pitch + column;
#pragma unroll
    for (int part = 0; part < kTileColumns / kShrink / 32; ++part) {
      const uint4 piece = finished<kEpilogue>(d + half * 2, part);
      if (row < place.rows && column + part * 32 < width) *reinterpret_cast<uint4*>(y + part * 32) = piece;
    }
  }
}

template <Epilogue kEpilogue>
__device__ __forceinline__ void consume(Shared& s, const LinearArgs& a, int warpgroup) {
  const unsigned lane = threadIdx.x % 32;
  const auto release = [&](int stage) {  // to every block: each copies weights into all
    if (lane < kCluster) barrier_arrive_at(lane, &s.empty[stage]);
  };
  Ring<kStages> ring;
  each_tile<false>(s, a, [&](const TilePlace& place) {
    float d[128];
    auto& left = *reinterpret_cast<float(*)[64]>(d);  // two products of 128 columns: the registers of one of
    auto& right =
        *reinterpret_cast<float(*)[64]>(d + 64);  // 256 are more than a kernel of 512 threads starts with
#pragma unroll
    for (int i = 0; i < 128; ++i) d[i] = 0;
    int last = -1;  // stage of the step that is still being multiplied
    for (int k = 0; k < a.in; k += kDepth) {
      barrier_wait(&s.full[ring.stage], ring.parity);
      const std::uint64_t x = k_major_operand(s.x[ring.stage] + warpgroup * 64 * kDepth * 2);
      const std::uint64_t w = k_major_operand(s.w[ring.stage]);
      pin(d);
      wgmma_fence();
#pragma unroll
      for (int i = 0; i < kDepth / 16; ++i) {
        wgmma_ss<1>(left, advance(x, i * 32), advance(w, i * 32));
        wgmma_ss<1>(right, advance(x, i * 32), advance(w, 128 * kDepth * 2 + i * 32));
      }
      wgmma_commit();
      wgmma_wait<1>();
      if (last >= 0) release(last);
      last = ring.stage;
      ring.next();
    }
    wgmma_wait<0>();
    pin(d);
    release(last);
    write<kEpilogue>(a, place, d, warpgroup);
  });
}

template <Epilogue kEpilogue>
__global__ void __cluster_dims__(kCluster) __launch_bounds__(kThreads, 1)
    linear_kernel(const __grid_constant__ LinearArgs a) {
#ifdef MAGI_SM90A
  extern __shared__ unsigned char memory[];
  auto& s =
      *reinterpret_cast<Shared*>((reinterpret_cast<std::uintptr_t>(memory) + 1023) & ~std::uintptr_t{1023});
  if (threadIdx.x == 0) {
    for (int i = 0; i < kStages; ++i) {
      barrier_init(&s.full[i], 1);
      barrier_init(&s.empty[i], kCluster * kWarps);
    }
    barrier_init(&s.tile_full, 1);
    barrier_init(&s.tile_empty, kCluster * (kWarps + 1));
    fence_barrier_init();
    barrier_expect(&s.tile_full, sizeof(int));
  }
  cluster_sync();  // the other block copies into this one and arrives at its barriers
  const int warpgroup = threadIdx.x / kWarpgroup;
  if (warpgroup == kConsumers) {
    give_registers<32>();
    if (threadIdx.x == kConsumers * kWarpgroup) produce(s, a);
    if (threadIdx.x == kConsumers * kWarpgroup + 32 && cluster_rank() == 0) hand_out(s, a);
  } else {
    take_registers<160>();
    consume<kEpilogue>(s, a, warpgroup);
  }
  cluster_sync();  // as long as it does so, neither leaves
#endif
}

}  // namespace

bool linear_sm90_takes(const Tensor& x, const LinearWeight& w, Epilogue epilogue, const Tensor& y,
                       int device) {
  return (is_gated(epilogue) || (epilogue == Epilogue::none && w.groups > 1)) && w.dtype == DType::bf16 &&
         y.dtype() == DType::bf16 && !w.bias.defined() && w.in % 8 == 0 && w.out % 16 == 0 &&
         x.pitch() % 8 == 0 && y.pitch() % 8 == 0 && x.dim(0) < (std::int64_t{1} << 31) &&
         (reinterpret_cast<std::uintptr_t>(x.raw()) | reinterpret_cast<std::uintptr_t>(y.raw())) % 16 == 0 &&
         is_hopper(device);
}

void linear_sm90(const Tensor& x, const LinearWeight& w, const Segments& segments, Epilogue epilogue,
                 Tensor& y, int* counter, cudaStream_t stream) {
  if (x.dim(0) == 0) return;
  LinearArgs a;
  a.x = bf16_tensor_map(x.raw(), x.dim(0), w.in, x.pitch(), kTileRows);
  a.weight = bf16_tensor_map(w.data.raw(), w.groups * w.out, w.in, w.data.pitch(), kTileColumns / kCluster);
  a.y = elements<Bf16>(y);
  a.y_pitch = y.pitch();
  a.handed_out = counter;
  a.in = static_cast<int>(w.in);
  a.out = static_cast<int>(w.out);
  a.runs = row_groups(segments, w.groups, x.dim(0));
  std::int64_t row_tiles = 0;
  for (int i = 0, begin = 0; i < a.runs.count; begin = a.runs.end[i++])
    row_tiles += (a.runs.end[i] - begin + kClusterRows - 1) / kClusterRows;
  a.column_tiles = static_cast<int>((w.out + kTileColumns - 1) / kTileColumns);
  require(row_tiles * a.column_tiles < (std::int64_t{1} << 30), "linear: {} tiles are too many for the GPU",
          row_tiles * a.column_tiles);
  a.row_tiles = static_cast<int>(row_tiles);
  const auto kernel = epilogue == Epilogue::swiglu7     ? linear_kernel<Epilogue::swiglu7>
                      : epilogue == Epilogue::silu_gate ? linear_kernel<Epilogue::silu_gate>
                                                        : linear_kernel<Epilogue::none>;
  launch_persistent(kernel, a, kThreads, kSharedBytes, stream, "linear");
}

}  // namespace magi::cuda
