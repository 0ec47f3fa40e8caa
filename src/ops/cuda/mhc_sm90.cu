// SPDX-License-Identifier: Apache-2.0
// An mHC site of the release's size (4 streams of 3072, bf16) on GPUs with clusters: the streams are read
// once. A cluster of 8 blocks takes 32 rows, each block an eighth of D of all streams, which stays in its
// shared memory, each warp 64 columns: (1) add the last branch; (2) streams·phi, phi·(1 + norm weight) as
// high and low bf16 terms, and the squares; the warps' and the blocks' partial sums join, the latter through
// distributed shared memory; (3) coefficients; (4) mix and pre-norm. All four streams' arithmetic is on the
// tensor cores: coefficients, streams and branch are bf16, so their products are exact, and everything
// accumulates in f32. A row's sums are in the same order wherever the row lies. A second, small kernel turns
// the logits of h_res into h_res (Sinkhorn).
#include <cooperative_groups.h>

#include "ops/cuda/hopper.h"
#include "ops/cuda/mhc_row.cuh"
#include "ops/cuda/mhc_sm90.cuh"

namespace magi::cuda {
namespace {

namespace cg = cooperative_groups;
using namespace mhc;

// Clusters and their shared memory exist from compute capability 9.0 on.
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900

/// s.parts[0] = phi'ᵀ·x and s.squares over this block's slice: each warp its columns, added up in the warps'
/// order.
__device__ __forceinline__ void project(Shared& s, const uint4* phi) {
  constexpr int kMine = kSteps / kWarps, kAhead = 3;
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, g = lane / 4, t = lane % 4;
  constexpr int kStreamSteps = kBlock / 16;  // of the warp
  const uint4* mine = phi + warp * kStreamSteps * kTiles * 32 + lane;
  const auto load = [&](int i, uint4(&a)[kTiles]) {
    const int step = i / kStreamSteps * kStepsPerStream + i % kStreamSteps;
#pragma unroll
    for (int j = 0; j < kTiles; ++j) a[j] = __ldg(mine + (step * kTiles + j) * 32);
  };
  uint4 ring[kAhead][kTiles];
#pragma unroll
  for (int i = 0; i < kAhead; ++i) load(i, ring[i]);
  float d[kTiles][kRows / 8][4] = {}, squares[kRows / 8][4] = {};
#pragma unroll
  for (int i = 0; i < kMine; ++i) {
    const int stream = i / kStreamSteps, k = warp * kBlock + i % kStreamSteps * 16;
    uint4 a[kTiles];
#pragma unroll
    for (int j = 0; j < kTiles; ++j) a[j] = ring[i % kAhead][j];
    if (i + kAhead < kMine) load(i + kAhead, ring[i % kAhead]);
#pragma unroll
    for (int pair = 0; pair < kRows / 16; ++pair) {
      const Bf16* from =
          &s.x[plane(stream) + (pair * 16 + lane / 16 * 8 + lane % 8) * kPitch + k + lane / 8 % 2 * 8];
      std::uint32_t b[4];
      asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                   : "=r"(b[0]), "=r"(b[1]), "=r"(b[2]), "=r"(b[3])
                   : "r"(static_cast<std::uint32_t>(__cvta_generic_to_shared(from)))
                   : "memory");
#pragma unroll
      for (int j = 0; j < kTiles; ++j) {
        mma(d[j][2 * pair], a[j].x, a[j].y, a[j].z, a[j].w, b[0], b[1]);
        mma(d[j][2 * pair + 1], a[j].x, a[j].y, a[j].z, a[j].w, b[2], b[3]);
      }
      // x·xᵀ of 16 rows: the squares are on its diagonal.
      mma(squares[2 * pair], b[0], b[2], b[1], b[3], b[0], b[1]);
      mma(squares[2 * pair + 1], b[0], b[2], b[1], b[3], b[2], b[3]);
    }
  }
  if (g / 2 == t) {
#pragma unroll
    for (int n = 0; n < kRows / 8; ++n)
      s.warp_squares[warp][n * 8 + g] = g % 2 == 0 ? squares[n][n % 2 * 2] : squares[n][n % 2 * 2 + 1];
  }
  // The upper warps hand theirs to the lower ones, which hand the sums to all.
  const auto hand_over = [&](float(*part)[kRows], bool add) {
#pragma unroll
    for (int j = 0; j < kTiles; ++j)
#pragma unroll
      for (int n = 0; n < kRows / 8; ++n) {
        auto& place = *reinterpret_cast<float2*>(&part[j * 8 + g][n * 8 + t * 2]);
        const float2 old = add ? place : make_float2(0, 0);
        place = make_float2(old.x + (d[j][n][0] + d[j][n][2]), old.y + (d[j][n][1] + d[j][n][3]));
      }
  };
  if (warp >= kWarps / 2) hand_over(s.parts[warp - kWarps / 2], false);
  __syncthreads();
  if (warp < kWarps / 2) {
    hand_over(s.parts[warp], true);
  } else if (warp == kWarps - 1) {
    float sum = 0;
#pragma unroll
    for (int w = 0; w < kWarps; ++w) sum += s.warp_squares[w][lane];
    s.squares[lane] = sum;
  }
  __syncthreads();
  auto* sums = reinterpret_cast<float4*>(s.parts);
  constexpr int kPieces = kColumns * kRows / 4;
  for (int i = threadIdx.x; i < kPieces; i += kThreads) {
    float4 total = sums[i];
#pragma unroll
    for (int w = 1; w < kWarps / 2; ++w) {
      const float4 more = sums[w * kPieces + i];
      total = make_float4(total.x + more.x, total.y + more.y, total.z + more.z, total.w + more.w);
    }
    sums[i] = total;
  }
}

/// The logit of a column and row, from all blocks' sums.
__device__ __forceinline__ float logit(Shared& s, const MhcArgs& a, const cg::cluster_group& cluster,
                                       int column, int row) {
  const auto joined = [&](float* part) {
    float sum = 0;
#pragma unroll
    for (int i = 0; i < kCluster; ++i) sum += *cluster.map_shared_rank(part, i);
    return sum;
  };
  const int kind = column < kStreams ? 0 : column < 2 * kStreams ? 1 : 2;
  const float h = joined(&s.parts[0][column][row]), squares = joined(&s.squares[row]);
  const float scale = 1.0f / sqrtf(squares / static_cast<float>(kStreams * kWidth) + a.norm_eps);
  const float factor = 1.0f / sqrtf(static_cast<float>(kStreams * kWidth));
  return __ldg(a.alpha + kind) * factor * (h * scale) + __ldg(a.bias + column);
}

/// h_pre of every row to shared memory, of rows 4·rank… to the state.
__device__ __forceinline__ void make_pre(Shared& s, const MhcArgs& a, const RowTile& tile,
                                         const cg::cluster_group& cluster) {
  static_assert(kStreams * kRows <= kThreads && kRows / kGroup <= kCluster);
  const int thread = threadIdx.x, column = thread / kRows, row = thread % kRows;
  if (thread >= kStreams * kRows) return;
  const Bf16 pre = __float2bfloat16(sigmoid(logit(s, a, cluster, column, row)));
  s.pre[row][column] = pre;
  if (row / kGroup == static_cast<int>(cluster.block_rank()) && row < tile.rows)
    static_cast<Bf16*>(a.pre)[(tile.first + row) * kStreams + column] = pre;
}

/// h_post and the logits of h_res, of this block's share of the columns and rows.
__device__ __forceinline__ void make_post_and_res(Shared& s, const SiteArgs& args, const RowTile& tile,
                                                  const cg::cluster_group& cluster) {
  constexpr int kCount = (kColumns - kStreams) * kRows, kShare = (kCount + kCluster - 1) / kCluster;
  static_assert(kShare <= kThreads);
  const int thread = threadIdx.x, i = static_cast<int>(cluster.block_rank()) * kShare + thread;
  const int column = kStreams + i / kRows, row = i % kRows;
  if (thread >= kShare || i >= kCount || row >= tile.rows) return;
  const float value = logit(s, args.mhc, cluster, column, row);
  const std::int64_t n = tile.first + row;
  if (column < 2 * kStreams)
    static_cast<Bf16*>(args.mhc.post)[n * kStreams + column - kStreams] =
        __float2bfloat16(2.0f * sigmoid(value));
  else
    args.res_logits[n * kStreams * kStreams + column - 2 * kStreams] = value;
}

#endif

__global__ void __launch_bounds__(kThreads, kBlocksPerProcessor)
    mhc_site_kernel(const __grid_constant__ SiteArgs args, const __grid_constant__ RowGroups runs) {
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900
  extern __shared__ __align__(128) unsigned char memory[];
  Shared& s = *reinterpret_cast<Shared*>(memory);
  const MhcArgs& a = args.mhc;
  const cg::cluster_group cluster = cg::this_cluster();
  const int rank = static_cast<int>(cluster.block_rank()), slice = rank * kSlice;
  const RowTile tile = row_tile(runs, static_cast<int>(blockIdx.x) / kCluster);
  if (a.branch)
    load_streams<true>(s, a, tile, slice);
  else
    load_streams<false>(s, a, tile, slice);
  const int norm_group = args.norm_grouped ? tile.group : 0;
  project(s, args.phi + static_cast<std::int64_t>(norm_group * kCluster + rank) * kSteps * kTiles * 32);
  cluster.sync();
  make_pre(s, a, tile, cluster);
  __syncthreads();

  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, t = lane % 4;
  uint4 mixed[2][4];
  mix(s, mixed);
#pragma unroll
  for (int half = 0; half < 2; ++half)
#pragma unroll
    for (int e = 0; e < 4; e += 2) {
      float sum = 0;
#pragma unroll
      for (int i = 0; i < 8; ++i) {
        const std::uint32_t word = word_of(mixed[half][e + i / 4], i % 4);
        sum = fmaf(low_of(word), low_of(word), sum);
        sum = fmaf(high_of(word), high_of(word), sum);
      }
      sum += __shfl_xor_sync(~0u, sum, 1);
      sum += __shfl_xor_sync(~0u, sum, 2);
      if (t == 0) s.warp_squares[warp][mixed_row(half, e, lane)] = sum;
    }
  make_post_and_res(s, args, tile, cluster);
  __syncthreads();
  if (threadIdx.x < kRows) {
    float sum = 0;
#pragma unroll
    for (int w = 0; w < kWarps; ++w) sum += s.warp_squares[w][threadIdx.x];
    s.mixed_squares[threadIdx.x] = sum;
  }
  // The columns' weights, pieces t and t + 4.
  const int column = slice + warp * kBlock + t * 8;
  float weight[2][8];
#pragma unroll
  for (int i = 0; i < 2; ++i)
#pragma unroll
    for (int k = 0; k < 2; ++k) {
      const float4 v = __ldg(reinterpret_cast<const float4*>(
          a.pre_weight + (args.pre_grouped ? tile.group * kWidth : 0) + column + i * 32 + k * 4));
      weight[i][4 * k] = v.x + 1.0f, weight[i][4 * k + 1] = v.y + 1.0f;
      weight[i][4 * k + 2] = v.z + 1.0f, weight[i][4 * k + 3] = v.w + 1.0f;
    }
  cluster.sync();
  float total = 0;  // of row `lane`
#pragma unroll
  for (int i = 0; i < kCluster; ++i) total += *cluster.map_shared_rank(&s.mixed_squares[lane], i);
  auto arrival = cluster.barrier_arrive();
  const float scale = 1.0f / sqrtf(total / static_cast<float>(kWidth) + a.pre_eps);
  Bf16* out = static_cast<Bf16*>(a.out) + (tile.first + lane / 4) * kWidth + column;
#pragma unroll
  for (int half = 0; half < 2; ++half)
#pragma unroll
    for (int e = 0; e < 4; ++e) {
      const int row = mixed_row(half, e, lane);
      const float row_scale = __shfl_sync(~0u, scale, row);
      const auto scaled = [&](int i) {
        const std::uint32_t word = word_of(mixed[half][e], i);
        return pack_pair(low_of(word) * row_scale * weight[e % 2][2 * i],
                         high_of(word) * row_scale * weight[e % 2][2 * i + 1]);
      };
      const uint4 v = make_uint4(scaled(0), scaled(1), scaled(2), scaled(3));
      if (row < tile.rows) *reinterpret_cast<uint4*>(out + (half * 16 + e / 2 * 8) * kWidth + e % 2 * 32) = v;
    }
  cluster.barrier_wait(std::move(arrival));  // the others may still read this block's sums
#endif
}

/// h_res of a row from its logits, a thread a row.
__global__ void sinkhorn_kernel(const float4* logits, uint4* res, std::int64_t rows) {
  const std::int64_t n = static_cast<std::int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  if (n >= rows) return;
  float v[kStreams * kStreams];
#pragma unroll
  for (int i = 0; i < kStreams; ++i) {
    const float4 row = logits[n * kStreams + i];
    v[4 * i] = row.x, v[4 * i + 1] = row.y, v[4 * i + 2] = row.z, v[4 * i + 3] = row.w;
  }
  sinkhorn(v, kStreams);
#pragma unroll
  for (int i = 0; i < 2; ++i)
    res[n * 2 + i] = make_uint4(pack_pair(v[8 * i], v[8 * i + 1]), pack_pair(v[8 * i + 2], v[8 * i + 3]),
                                pack_pair(v[8 * i + 4], v[8 * i + 5]), pack_pair(v[8 * i + 6], v[8 * i + 7]));
}

/// phi·(1 + norm weight) in the order of the tensor cores' A operand: a thread packs a lane's 16 bytes.
__global__ void pack_phi_kernel(const float* phi, const float* norm_weight, uint4* packed, int count) {
  const int i = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x);
  if (i >= count) return;
  const int lane = i % 32, t = i / 32 % kTiles, step = i / (32 * kTiles) % kSteps;
  const int rank = i / (32 * kTiles * kSteps) % kCluster, group = i / (32 * kTiles * kSteps * kCluster);
  const int column = t * 8 + lane / 4;
  const int first =
      step / kStepsPerStream * kWidth + rank * kSlice + step % kStepsPerStream * 16 + lane % 4 * 2;
  __align__(16) Bf16 value[8];
#pragma unroll
  for (int j = 0; j < 4; ++j) {  // two k, then the two 8 further
    const int k = first + j / 2 * 8 + j % 2;
    const float v = phi[static_cast<std::int64_t>(k) * kColumns + column] *
                    (norm_weight[static_cast<std::int64_t>(group) * kStreams * kWidth + k] + 1.0f);
    const Bf16 high = __float2bfloat16(v);
    value[j / 2 * 4 + j % 2] = high;
    value[j / 2 * 4 + 2 + j % 2] = __float2bfloat16(v - __bfloat162float(high));
  }
  packed[i] = *reinterpret_cast<const uint4*>(value);
}

}  // namespace

bool mhc_sm90_takes(const MhcArgs& a, DType dtype) {
  const auto aligned = [](const void* p) { return reinterpret_cast<std::uintptr_t>(p) % 16 == 0; };
  return dtype == DType::bf16 && a.streams_count == kStreams && a.width == kWidth &&
         a.branch_pitch % 8 == 0 && aligned(a.streams) && aligned(a.branch) && aligned(a.out) &&
         aligned(a.pre_weight) && aligned(a.res) && on_hopper();
}

namespace {
std::int64_t phi_pieces(int norm_groups) {
  return std::int64_t{norm_groups} * kCluster * kSteps * kTiles * 32;
}
}  // namespace

std::int64_t mhc_sm90_scratch(DType dtype, const Shape& streams, int norm_groups) {
  if (dtype != DType::bf16 || streams[1] != kStreams || streams[2] != kWidth) return 0;
  return std::int64_t{sizeof(uint4)} * phi_pieces(norm_groups) +
         std::int64_t{sizeof(float)} * streams[0] * kStreams * kStreams;
}

void mhc_site_sm90(const MhcArgs& args, int norm_groups, int pre_groups, const RowGroups& runs, void* scratch,
                   cudaStream_t stream) {
  const int pieces = static_cast<int>(phi_pieces(norm_groups));
  auto* packed = static_cast<uint4*>(scratch);
  auto* res_logits = reinterpret_cast<float*>(packed + pieces);
  pack_phi_kernel<<<(pieces + 255) / 256, 256, 0, stream>>>(args.phi, args.norm_weight, packed, pieces);
  int tiles = 0;
  for (int i = 0, begin = 0; i < runs.count; begin = runs.end[i++])
    tiles += (runs.end[i] - begin + kRows - 1) / kRows;
  check_cuda(cudaFuncSetAttribute(mhc_site_kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                  static_cast<int>(sizeof(Shared))),
             "mhc_site");
  cudaLaunchAttribute cluster{};
  cluster.id = cudaLaunchAttributeClusterDimension;
  cluster.val.clusterDim = {kCluster, 1, 1};
  cudaLaunchConfig_t config{};
  config.gridDim = static_cast<unsigned>(tiles) * kCluster;
  config.blockDim = kThreads;
  config.dynamicSmemBytes = sizeof(Shared);
  config.stream = stream;
  config.attrs = &cluster;
  config.numAttrs = 1;
  check_cuda(cudaLaunchKernelEx(&config, mhc_site_kernel,
                                SiteArgs{args, norm_groups > 1, pre_groups > 1, packed, res_logits}, runs),
             "mhc_site");
  sinkhorn_kernel<<<static_cast<unsigned>((args.rows + 127) / 128), 128, 0, stream>>>(
      reinterpret_cast<const float4*>(res_logits), static_cast<uint4*>(args.res), args.rows);
  check_launch("mhc_site");
}

}  // namespace magi::cuda
