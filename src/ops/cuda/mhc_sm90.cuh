// SPDX-License-Identifier: Apache-2.0
// Parts of mhc_sm90.cu: the tile that a cluster works on, and how a warp takes four rows of all streams
// through the tensor cores.
#pragma once

#include "ops/cuda/mhc.h"

namespace magi::cuda::mhc {

inline constexpr int kStreams = 4, kWidth = 3072, kColumns = 2 * kStreams + kStreams * kStreams;
inline constexpr int kCluster = 8, kSlice = kWidth / kCluster, kRows = 32;
inline constexpr int kBlocksPerProcessor = kCluster / 4;
inline constexpr int kBlock = 64;  ///< columns of a warp
inline constexpr int kWarps = kSlice / kBlock, kThreads = 32 * kWarps;
inline constexpr int kGroup = 4, kGroups = kRows / kGroup;  ///< rows that a warp mixes at once
inline constexpr int kPitch = kSlice + 8;                   ///< elements: ldmatrix meets no bank twice
inline constexpr int kSteps = kStreams * kSlice / 16, kStepsPerStream = kSlice / 16;
inline constexpr int kTiles = kColumns / 8;  ///< of 8 columns: 8 high terms over 8 low terms

struct Shared {
  /// The streams as planes [kRows][kPitch]; see plane().
  alignas(128) Bf16 x[kStreams * kRows * kPitch + 112];
  alignas(16) Bf16 old_res[kRows][kStreams][kStreams];
  alignas(16) Bf16 old_post[kRows][kStreams];
  float parts[kWarps / 2][kColumns][kRows];  ///< of the warps; at the end [0] is this block's part of h
  float warp_squares[kWarps][kRows];
  float squares[kRows];        ///< this block's part
  float mixed_squares[kRows];  ///< this block's part
  Bf16 pre[kRows][kStreams];
};
static_assert(kBlocksPerProcessor * (sizeof(Shared) + 1024) <= 228 * 1024);

struct SiteArgs {
  MhcArgs mhc;
  bool norm_grouped, pre_grouped;  ///< else group 0 for all rows
  const uint4* phi;                ///< packed: [groups][kCluster][kSteps][kTiles][32]
  float* res_logits;               ///< [rows][16]
};

__device__ __forceinline__ std::uint32_t pack_pair(float low, float high) {
  const __nv_bfloat162 pair = __floats2bfloat162_rn(low, high);
  return *reinterpret_cast<const std::uint32_t*>(&pair);
}

// Clusters and their shared memory exist from compute capability 9.0 on.
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900

/// The rows of a cluster: within one run of norm groups.
struct RowTile {
  std::int64_t first;
  int rows, group;
};
__device__ __forceinline__ RowTile row_tile(const RowGroups& runs, int tile) {
  int begin = 0;
  for (int i = 0; i < runs.count; ++i) {
    const int tiles = (runs.end[i] - begin + kRows - 1) / kRows;
    if (tile < tiles) {
      const int first = begin + tile * kRows;
      return {first, min(kRows, runs.end[i] - first), runs.group[i]};
    }
    tile -= tiles;
    begin = runs.end[i];
  }
  return {0, 0, 0};
}

/// Where stream `stream` begins in Shared::x. The padding keeps the 16-byte accesses of 8 lanes, which meet
/// streams {0,1} or {2,3} when they store and {0,2} or {1,3} when they load, in different banks.
__device__ __forceinline__ int plane(int stream) {
  return stream * kRows * kPitch + stream % 2 * 32 + stream / 2 * 80;
}

__device__ __forceinline__ float low_of(std::uint32_t pair) {
  return __uint_as_float(pair << 16);
}
__device__ __forceinline__ float high_of(std::uint32_t pair) {
  return __uint_as_float(pair & 0xffff0000u);
}

/// d [16×8] += a [16×16]·b [16×8]. With g = lane/4, t = lane%4: a has rows g, g+8 of columns 2t…, then of
/// 2t+8…; b has column g of rows 2t… and 2t+8…; d has row g, then row g+8, of columns 2t, 2t+1.
__device__ __forceinline__ void mma(float (&d)[4], std::uint32_t a0, std::uint32_t a1, std::uint32_t a2,
                                    std::uint32_t a3, std::uint32_t b0, std::uint32_t b1) {
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
      "{%0, %1, %2, %3};"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
}
/// The same with 8 columns of a: the first halves of a and b.
__device__ __forceinline__ void mma8(float (&d)[4], std::uint32_t a0, std::uint32_t a1, std::uint32_t b0) {
  asm volatile(
      "mma.sync.aligned.m16n8k8.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5}, {%6}, {%0, %1, %2, %3};"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(a0), "r"(a1), "r"(b0));
}

__device__ __forceinline__ std::uint32_t word_of(const uint4& v, int i) {
  return i == 0 ? v.x : i == 1 ? v.y : i == 2 ? v.z : v.w;
}
/// Element i of `a` under element i of `b`.
__device__ __forceinline__ std::uint32_t element_pair(const uint4& a, const uint4& b, int i) {
  return __byte_perm(word_of(a, i / 2), word_of(b, i / 2), i % 2 == 0 ? 0x5410 : 0x7632);
}
/// Values e of the eight products, as bf16.
__device__ __forceinline__ uint4 pack_column(const float (&d)[8][4], int e) {
  return make_uint4(pack_pair(d[0][e], d[1][e]), pack_pair(d[2][e], d[3][e]), pack_pair(d[4][e], d[5][e]),
                    pack_pair(d[6][e], d[7][e]));
}

// A warp mixes 4 rows of its 64 columns at once, in 8 products of 8 columns. Product i has element i of each
// of the 8 pieces of 16 bytes, so that a lane loads and stores whole pieces: its column of b is piece
// input_piece() of the row and streams that its lane stands for (row t/2 or 2 + t/2, streams 2(t%2), 2(t%2) +
// 1); its columns of d are pieces t and t + 4.
__device__ __forceinline__ int input_piece(int lane) {
  return lane / 4 / 2 + lane / 4 % 2 * 4;
}

/// The last coefficients of the tile's rows → shared memory.
__device__ __forceinline__ void load_old(Shared& s, const MhcArgs& a, const RowTile& tile) {
  const int thread = threadIdx.x, row = thread < 2 * kRows ? thread / 2 : thread - 2 * kRows;
  const std::int64_t n = tile.first + min(row, tile.rows - 1);
  if (thread < 2 * kRows)
    reinterpret_cast<uint4*>(s.old_res)[thread] =
        reinterpret_cast<const uint4*>(static_cast<const Bf16*>(a.res) + n * kStreams * kStreams)[thread % 2];
  else if (thread < 3 * kRows)
    reinterpret_cast<uint2*>(s.old_post)[row] =
        *reinterpret_cast<const uint2*>(static_cast<const Bf16*>(a.post) + n * kStreams);
}

struct Pieces {
  uint4 x[4], y;
};

/// The warp's columns of the streams → shared memory, with the last branch added (and written back) where
/// there is one. Rows beyond the tile repeat its last one and are not written.
template <bool kBranch>
__device__ __forceinline__ void load_streams(Shared& s, const MhcArgs& a, const RowTile& tile, int slice) {
  constexpr int kAhead = 3, kRow = kStreams * kWidth;
  const int lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
  const int own = static_cast<int>(threadIdx.x) / 32 * kBlock, column = slice + own + input_piece(lane) * 8;
  const int last = tile.rows - 1;
  Bf16* streams = static_cast<Bf16*>(a.streams) + tile.first * kRow;
  const Bf16* from = streams + t % 2 * 2 * kWidth + column;
  const Bf16* branch = static_cast<const Bf16*>(a.branch) + tile.first * a.branch_pitch + column;
  const int branch_pitch = static_cast<int>(a.branch_pitch);
  const auto load = [&](int group) {
    Pieces p;
#pragma unroll
    for (int j = 0; j < 4; ++j)
      p.x[j] = *reinterpret_cast<const uint4*>(from + min(group * kGroup + j / 2 * 2 + t / 2, last) * kRow +
                                               j % 2 * kWidth);
    if (kBranch) p.y = *reinterpret_cast<const uint4*>(branch + min(group * kGroup + t, last) * branch_pitch);
    return p;
  };
  Pieces ring[kAhead];
#pragma unroll
  for (int i = 0; i < kAhead; ++i) ring[i] = load(i);
  if (kBranch) {
    load_old(s, a, tile);
    __syncthreads();
  }
  Bf16* to = streams + (g / 4 * kStreams + g % 4) * kWidth + slice + own + t * 8;
  Bf16* kept = &s.x[plane(g % 4) + g / 4 * kPitch + own + t * 8];
#pragma unroll
  for (int group = 0; group < kGroups; ++group) {
    const Pieces p = ring[group % kAhead];
    if (group + kAhead < kGroups) ring[group % kAhead] = load(group + kAhead);
    float d[8][4] = {};
    // a[(row, to)][(row, from)] = res[row][to][from] and a[(row, to)][2·row] = post[row][to], zero across
    // rows.
    std::uint32_t res_low = g % 4 / 2 != t % 2 ? 0
                            : g % 2 == 0       ? 0x3f80
                                               : 0x3f800000,
                  res_high = res_low;  // identity
    if (kBranch) {
      const int row = group * kGroup + g / 4;
      res_low = *reinterpret_cast<const std::uint32_t*>(&s.old_res[row][g % 4][t % 2 * 2]);
      res_high = *reinterpret_cast<const std::uint32_t*>(&s.old_res[row + 2][g % 4][t % 2 * 2]);
      const std::uint32_t post =
          *reinterpret_cast<const unsigned short*>(&s.old_post[group * kGroup + t][g % 4]);
      const std::uint32_t post_low = g / 4 == t ? post : 0, post_high = 2 + g / 4 == t ? post : 0;
#pragma unroll
      for (int q = 0; q < 8; ++q)
        mma8(d[q], post_low, post_high, element_pair(p.y, make_uint4(0, 0, 0, 0), q));
    }
    if (g / 4 != t / 2) res_low = res_high = 0;
#pragma unroll
    for (int q = 0; q < 8; ++q)
      mma(d[q], res_low, 0, 0, res_high, element_pair(p.x[0], p.x[1], q), element_pair(p.x[2], p.x[3], q));
#pragma unroll
    for (int e = 0; e < 4; ++e) {
      const int row = group * kGroup + e / 2 * 2;  // and g / 4
      const uint4 v = pack_column(d, e);
      *reinterpret_cast<uint4*>(kept + row * kPitch + e % 2 * 32) = v;
      if (kBranch && row + g / 4 <= last) *reinterpret_cast<uint4*>(to + row * kRow + e % 2 * 32) = v;
    }
  }
  __syncwarp();
}

/// Row of value e of product `half` (rows 16·half…) in mixed[half][e]; the piece of columns is t + 4·(e%2).
__device__ __forceinline__ int mixed_row(int half, int e, int lane) {
  return half * 16 + e / 2 * 8 + lane / 4;
}
/// Σ h_pre·streams of all rows and the warp's columns, rounded.
__device__ __forceinline__ void mix(const Shared& s, uint4 (&mixed)[2][4]) {
  const int lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
  const int column = static_cast<int>(threadIdx.x) / 32 * kBlock + input_piece(lane) * 8;
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    float d[8][4] = {};
#pragma unroll
    for (int i = 0; i < 4; ++i) {  // a group of rows stands in rows 4·i… of the product
      const int first = half * 16 + i * kGroup, row = g % 4;
      const auto pair = *reinterpret_cast<const std::uint32_t*>(&s.pre[first + row][t % 2 * 2]);
      const bool here = g / 4 == i % 2;
      const std::uint32_t low = here && row == t / 2 ? pair : 0, high = here && row == 2 + t / 2 ? pair : 0;
      uint4 x[4];
#pragma unroll
      for (int j = 0; j < 4; ++j)
        x[j] = *reinterpret_cast<const uint4*>(
            &s.x[plane(t % 2 * 2 + j % 2) + (first + j / 2 * 2 + t / 2) * kPitch + column]);
#pragma unroll
      for (int q = 0; q < 8; ++q)
        mma(d[q], i < 2 ? low : 0, i < 2 ? 0 : low, i < 2 ? high : 0, i < 2 ? 0 : high,
            element_pair(x[0], x[1], q), element_pair(x[2], x[3], q));
    }
#pragma unroll
    for (int e = 0; e < 4; ++e) mixed[half][e] = pack_column(d, e);
  }
}

#endif

}  // namespace magi::cuda::mhc
