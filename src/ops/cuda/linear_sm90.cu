// SPDX-License-Identifier: Apache-2.0
// Linear layers on Hopper where a library's product would be followed by a pass of its own (gated epilogues)
// or be several, one for each run of rows of a weight group. A tile is 128 rows of one weight group × 256
// columns. One producer thread streams 64 of K at a time of rows and weights (bulk tensor copies); two
// consumer warpgroups multiply (wgmma, f32 accumulators) and finish in registers, where a thread holds gate
// and linear part, interleaved columns, side by side. Blocks stay and take tile after tile, so that copies
// for the next run under the finishing of the last.
#include <algorithm>

#include "ops/cuda/gated.cuh"
#include "ops/cuda/hopper.h"
#include "ops/cuda/linear_sm90.h"
#include "ops/cuda/moe_sm90.cuh"
#include "ops/cuda/tensor_map.h"

namespace magi::cuda {
namespace {

using namespace magi::sm90;

constexpr int kThreads = 3 * kWarpgroup, kConsumers = 2;
constexpr int kTileRows = 64 * kConsumers, kTileColumns = 256, kDepth = 64;
constexpr int kStages = 4;
/// Row tiles that walk the columns together: their inputs stay in L2 while the weights come by once.
constexpr int kBand = 16;
constexpr std::uint32_t kStepBytes = (kTileRows + kTileColumns) * kDepth * 2;

struct Shared {
  alignas(1024) unsigned char x[kStages][kTileRows * kDepth * 2];
  alignas(1024) unsigned char w[kStages][kTileColumns * kDepth * 2];
  std::uint64_t full[kStages], empty[kStages];
};
constexpr std::size_t kSharedBytes = sizeof(Shared) + 1024;  ///< 1 KB to align the tiles by

struct LinearArgs {
  CUtensorMap x, weight;
  Bf16* y;      ///< [rows, out], gated [rows, out/2]
  int in, out;  ///< out: columns of the product
  int row_tiles, column_tiles;
  RowGroups runs;
};

/// Where tile number `tile` lies; its rows stay within one run of one weight group.
struct TilePlace {
  int first, rows, column, weight_row;

  __device__ __forceinline__ TilePlace(const LinearArgs& a, int tile) {
    const int band = tile / (kBand * a.column_tiles), in_band = tile - band * kBand * a.column_tiles;
    const int band_rows = min(kBand, a.row_tiles - band * kBand);
    column = in_band / band_rows * kTileColumns;
    int row_tile = band * kBand + in_band % band_rows, begin = 0, run = 0;
    for (; run + 1 < a.runs.count; ++run) {
      const int tiles = (a.runs.end[run] - begin + kTileRows - 1) / kTileRows;
      if (row_tile < tiles) break;
      row_tile -= tiles;
      begin = a.runs.end[run];
    }
    first = begin + row_tile * kTileRows;
    rows = min(kTileRows, a.runs.end[run] - first);
    weight_row = a.runs.group[run] * a.out + column;
  }
};

[[maybe_unused]] __device__ __forceinline__ void produce(Shared& s, const LinearArgs& a) {
  Ring<kStages> ring;
  for (int tile = blockIdx.x; tile < a.row_tiles * a.column_tiles; tile += gridDim.x) {
    const TilePlace place(a, tile);
    for (int k = 0; k < a.in; k += kDepth) {
      barrier_wait(&s.empty[ring.stage], ring.parity ^ 1);
      barrier_expect(&s.full[ring.stage], kStepBytes);
      load_box(&a.x, &s.full[ring.stage], s.x[ring.stage], k, place.first);
      load_box(&a.weight, &s.full[ring.stage], s.w[ring.stage], k, place.weight_row);
      ring.next();
    }
  }
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
    Bf16* y = a.y + static_cast<std::int64_t>(place.first + row) * width + column;
#pragma unroll
    for (int part = 0; part < kTileColumns / kShrink / 32; ++part) {
      const uint4 piece = finished<kEpilogue>(d + half * 2, part);
      if (row < place.rows && column + part * 32 < width) *reinterpret_cast<uint4*>(y + part * 32) = piece;
    }
  }
}

template <Epilogue kEpilogue>
__device__ __forceinline__ void consume(Shared& s, const LinearArgs& a, int warpgroup) {
  const bool leader = threadIdx.x % 32 == 0;
  Ring<kStages> ring;
  for (int tile = blockIdx.x; tile < a.row_tiles * a.column_tiles; tile += gridDim.x) {
    float d[128];
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
      for (int i = 0; i < kDepth / 16; ++i) moe::wgmma_ss_n256(d, advance(x, i * 32), advance(w, i * 32), 1);
      wgmma_commit();
      wgmma_wait<1>();
      if (last >= 0 && leader) barrier_arrive(&s.empty[last]);
      last = ring.stage;
      ring.next();
    }
    wgmma_wait<0>();
    pin(d);
    if (leader) barrier_arrive(&s.empty[last]);
    write<kEpilogue>(a, TilePlace(a, tile), d, warpgroup);
  }
}

template <Epilogue kEpilogue>
__global__ void __launch_bounds__(kThreads, 1) linear_kernel(const __grid_constant__ LinearArgs a) {
#ifdef MAGI_SM90A
  extern __shared__ unsigned char memory[];
  auto& s =
      *reinterpret_cast<Shared*>((reinterpret_cast<std::uintptr_t>(memory) + 1023) & ~std::uintptr_t{1023});
  if (threadIdx.x == 0) {
    for (int i = 0; i < kStages; ++i) {
      barrier_init(&s.full[i], 1);
      barrier_init(&s.empty[i], kConsumers * kWarpgroup / 32);
    }
    fence_barrier_init();
  }
  __syncthreads();
  const int warpgroup = threadIdx.x / kWarpgroup;
  if (warpgroup == kConsumers) {
    give_registers<40>();
    if (threadIdx.x == kConsumers * kWarpgroup) produce(s, a);
  } else {
    take_registers<232>();
    consume<kEpilogue>(s, a, warpgroup);
  }
#endif
}

}  // namespace

bool linear_sm90_takes(const Tensor& x, const LinearWeight& w, Epilogue epilogue, const Tensor& y,
                       int device) {
  return (is_gated(epilogue) || (epilogue == Epilogue::none && w.groups > 1)) && w.dtype == DType::bf16 &&
         y.dtype() == DType::bf16 && !w.bias.defined() && w.in % 8 == 0 && w.out % 16 == 0 &&
         x.pitch() % 8 == 0 && y.contiguous() && x.dim(0) < (std::int64_t{1} << 31) &&
         (reinterpret_cast<std::uintptr_t>(x.raw()) | reinterpret_cast<std::uintptr_t>(y.raw())) % 16 == 0 &&
         is_hopper(device);
}

void linear_sm90(const Tensor& x, const LinearWeight& w, const Segments& segments, Epilogue epilogue,
                 Tensor& y, cudaStream_t stream) {
  if (x.dim(0) == 0) return;
  LinearArgs a;
  a.x = bf16_tensor_map(x.raw(), x.dim(0), w.in, x.pitch(), kTileRows);
  a.weight = bf16_tensor_map(w.data.raw(), w.groups * w.out, w.in, w.in, kTileColumns);
  a.y = elements<Bf16>(y);
  a.in = static_cast<int>(w.in);
  a.out = static_cast<int>(w.out);
  a.runs = row_groups(segments, w.groups, x.dim(0));
  std::int64_t row_tiles = 0;
  for (int i = 0, begin = 0; i < a.runs.count; begin = a.runs.end[i++])
    row_tiles += (a.runs.end[i] - begin + kTileRows - 1) / kTileRows;
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
