// SPDX-License-Identifier: Apache-2.0
// An mHC site of the release's size (4 streams of 3072, bf16) on GPUs with clusters: the streams are read
// once. A cluster of 8 blocks takes 32 rows, each block an eighth of D of all streams, which stays in its
// shared memory: (1) add the last branch; (2) streams·phi on the tensor cores, phi·(1 + norm weight) as high
// and low bf16 terms; the blocks' partial sums join through distributed shared memory; (3) coefficients;
// (4) mix and pre-norm. A row's sums are in the same order wherever the row lies.
#include <cooperative_groups.h>

#include "ops/cuda/mhc.h"
#include "ops/cuda/mhc_row.cuh"

namespace magi::cuda {
namespace {

namespace cg = cooperative_groups;

constexpr int kStreams = 4, kWidth = 3072, kColumns = 2 * kStreams + kStreams * kStreams;
constexpr int kCluster = 8, kSlice = kWidth / kCluster, kRows = 32;
constexpr int kThreads = 256;
[[maybe_unused]] constexpr int kWarps = kThreads / 32;
constexpr int kPitch = kSlice + 8;  ///< elements: ldmatrix meets no bank twice
constexpr int kSteps = kStreams * kSlice / 16, kStepsPerStream = kSlice / 16;
constexpr int kTiles = kColumns / 8;                       ///< of 8 columns: 8 high terms over 8 low terms
constexpr int kChunks = kSlice / 8;                        ///< 16-byte pieces of a row's slice
[[maybe_unused]] constexpr int kTasks = 4 * kChunks / 32;  ///< a lane's: a warp has 4 rows
constexpr int kOldColumns = kStreams + kStreams * kStreams;

struct Shared {
  alignas(128) Bf16 x[kStreams][kRows][kPitch];
  float h[kColumns][kRows];    ///< this block's part
  float squares[kRows];        ///< this block's part
  float mixed_squares[kRows];  ///< this block's part
  float total[kColumns][kRows];
  float scale[kRows];
  float old[kRows][kOldColumns];  ///< post | res of the last site
  float pre[kRows][kStreams];
};
static_assert(2 * (sizeof(Shared) + 1024) <= 228 * 1024, "two blocks a multiprocessor");

struct SiteArgs {
  MhcArgs mhc;
  const uint4* phi;  ///< packed: [groups][kCluster][kSteps][kTiles][32]
};

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

/// A warp's lane has pieces of the warp's 4 rows; piece t of the warp.
__device__ __forceinline__ int task_row(int task) {
  return (task * 32 + static_cast<int>(threadIdx.x % 32)) / kChunks;
}
__device__ __forceinline__ int task_chunk(int task) {
  return (task * 32 + static_cast<int>(threadIdx.x % 32)) % kChunks;
}

__device__ __forceinline__ void unpack(const uint4& v, float (&f)[8]) {
  const std::uint32_t words[4] = {v.x, v.y, v.z, v.w};
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    f[2 * i] = __uint_as_float(words[i] << 16);
    f[2 * i + 1] = __uint_as_float(words[i] & 0xffff0000u);
  }
}
__device__ __forceinline__ uint4 pack(const float (&f)[8]) {
  uint4 v;
  auto* pairs = reinterpret_cast<__nv_bfloat162*>(&v);
#pragma unroll
  for (int i = 0; i < 4; ++i) pairs[i] = __floats2bfloat162_rn(f[2 * i], f[2 * i + 1]);
  return v;
}
__device__ __forceinline__ float sum_of_squares(const uint4& v) {
  float f[8], sum = 0;
  unpack(v, f);
#pragma unroll
  for (float x : f) sum = fmaf(x, x, sum);
  return sum;
}

/// Sums of the warp's 4 rows → sums[4·warp …].
__device__ __forceinline__ void store_row_sums(float (&sum)[4], float* sums) {
#pragma unroll
  for (int r = 0; r < 4; ++r) {
    const float total = warp_sum(sum[r]);
    if (threadIdx.x % 32 == 0) sums[threadIdx.x / 32 * 4 + r] = total;
  }
}

/// Streams → shared memory, with the last branch added (and written back) where there is one.
__device__ __forceinline__ void load_streams(Shared& s, const MhcArgs& a, const RowTile& tile, int slice) {
  constexpr int kAtOnce = 3;
  const int warp = threadIdx.x / 32;
  auto* streams = static_cast<Bf16*>(a.streams);
  float squares[4] = {};
#pragma unroll
  for (int part = 0; part < kTasks; part += kAtOnce) {
    uint4 in[kAtOnce][kStreams], added[kAtOnce];
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) {
      const int row = 4 * warp + task_row(part + i);
      const std::int64_t n = tile.first + row, column = slice + task_chunk(part + i) * 8;
      const bool real = row < tile.rows;
#pragma unroll
      for (int j = 0; j < kStreams; ++j)
        in[i][j] = real ? *reinterpret_cast<const uint4*>(streams + (n * kStreams + j) * kWidth + column)
                        : make_uint4(0, 0, 0, 0);
      if (a.branch)
        added[i] = real ? __ldcs(reinterpret_cast<const uint4*>(static_cast<const Bf16*>(a.branch) +
                                                                n * a.branch_pitch + column))
                        : make_uint4(0, 0, 0, 0);
    }
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) {
      const int local = task_row(part + i), row = 4 * warp + local, chunk = task_chunk(part + i);
      if (a.branch) {
        const float* old = s.old[row];
        float x[kStreams][8], y[8];
#pragma unroll
        for (int j = 0; j < kStreams; ++j) unpack(in[i][j], x[j]);
        unpack(added[i], y);
#pragma unroll
        for (int to = 0; to < kStreams; ++to) {
          float mixed[8];
#pragma unroll
          for (int e = 0; e < 8; ++e) {
            float sum = 0;
#pragma unroll
            for (int from = 0; from < kStreams; ++from)
              sum = fmaf(old[kStreams + to * kStreams + from], x[from][e], sum);
            mixed[e] = fmaf(old[to], y[e], sum);
          }
          in[i][to] = pack(mixed);
          if (row < tile.rows)
            *reinterpret_cast<uint4*>(streams + ((tile.first + row) * kStreams + to) * kWidth + slice +
                                      chunk * 8) = in[i][to];
        }
      }
      float sum = 0;
#pragma unroll
      for (int j = 0; j < kStreams; ++j) {
        *reinterpret_cast<uint4*>(&s.x[j][row][chunk * 8]) = in[i][j];
        sum += sum_of_squares(in[i][j]);
      }
#pragma unroll
      for (int r = 0; r < 4; ++r) squares[r] += r == local ? sum : 0.f;
    }
  }
  store_row_sums(squares, s.squares);
}

__device__ __forceinline__ void mma(float (&d)[4], const uint4& a, std::uint32_t b0, std::uint32_t b1) {
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
      "{%0, %1, %2, %3};"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(a.x), "r"(a.y), "r"(a.z), "r"(a.w), "r"(b0), "r"(b1));
}

/// s.h = phi'ᵀ·x over this block's slice; the warps share out k and add up in their order.
__device__ __forceinline__ void project(Shared& s, const uint4* phi) {
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  float d[kTiles][kRows / 8][4] = {};
  constexpr int kMine = kSteps / kWarps;
#pragma unroll 4
  for (int i = 0; i < kMine; ++i) {
    const int step = warp * kMine + i, stream = step / kStepsPerStream, k = step % kStepsPerStream * 16;
    uint4 a[kTiles];
#pragma unroll
    for (int t = 0; t < kTiles; ++t) a[t] = __ldg(phi + (step * kTiles + t) * 32 + lane);
#pragma unroll
    for (int pair = 0; pair < kRows / 16; ++pair) {
      const Bf16* from = &s.x[stream][pair * 16 + lane / 16 * 8 + lane % 8][k + lane / 8 % 2 * 8];
      std::uint32_t b[4];
      asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                   : "=r"(b[0]), "=r"(b[1]), "=r"(b[2]), "=r"(b[3])
                   : "r"(static_cast<std::uint32_t>(__cvta_generic_to_shared(from)))
                   : "memory");
#pragma unroll
      for (int t = 0; t < kTiles; ++t) {
        mma(d[t][2 * pair], a[t], b[0], b[1]);
        mma(d[t][2 * pair + 1], a[t], b[2], b[3]);
      }
    }
  }
  for (int turn = 0; turn < kWarps; ++turn) {
    if (turn == warp) {
#pragma unroll
      for (int t = 0; t < kTiles; ++t)
#pragma unroll
        for (int n = 0; n < kRows / 8; ++n)
#pragma unroll
          for (int e = 0; e < 2; ++e) {
            float& to = s.h[t * 8 + lane / 4][n * 8 + lane % 4 * 2 + e];
            const float part = d[t][n][e] + d[t][n][e + 2];
            to = turn == 0 ? part : to + part;
          }
    }
    __syncthreads();
  }
}

/// Lanes 0–15 and 16–31 have a 4×4 matrix each, a lane an element.
__device__ __forceinline__ float sinkhorn_element(float v) {
  float highest = v;
#pragma unroll
  for (int step = 8; step > 0; step /= 2) highest = fmaxf(highest, __shfl_xor_sync(~0u, highest, step));
  v = expf(v - highest);
  for (int i = 0; i < kSinkhornIterations; ++i) {
#pragma unroll
    for (int axis = 0; axis < 2; ++axis) {
      const int near = axis == 0 ? 4 : 1;
      float sum = v + __shfl_xor_sync(~0u, v, near);
      sum += __shfl_xor_sync(~0u, sum, 2 * near);
      v = __fdividef(v, sum + kSinkhornEps);
    }
  }
  return v;
}

/// The coefficients: h_pre of every row to shared memory; everything of rows 4·rank… to the state.
__device__ __forceinline__ void coefficients(Shared& s, const MhcArgs& a, const RowTile& tile,
                                             const cg::cluster_group& cluster) {
  const int rank = static_cast<int>(cluster.block_rank()), own = 4 * rank, thread = threadIdx.x;
  const auto joined = [&](float* part) {
    float sum = 0;
#pragma unroll
    for (int i = 0; i < kCluster; ++i) sum += *cluster.map_shared_rank(part, i);
    return sum;
  };
  if (thread < 128) {
    s.total[thread / kRows][thread % kRows] = joined(&s.h[thread / kRows][thread % kRows]);
  } else if (thread < 128 + 80) {
    const int column = kStreams + (thread - 128) / 4, row = own + thread % 4;
    s.total[column][row] = joined(&s.h[column][row]);
  } else if (thread < 128 + 80 + kRows) {
    const int row = thread - 208;
    s.scale[row] = 1.0f / sqrtf(joined(&s.squares[row]) / static_cast<float>(kStreams * kWidth) + a.norm_eps);
  }
  __syncthreads();
  const float factor = 1.0f / sqrtf(static_cast<float>(kStreams * kWidth));
  const auto affine = [&](int column, int row, int kind) {
    return __ldg(a.alpha + kind) * factor * (s.total[column][row] * s.scale[row]) + __ldg(a.bias + column);
  };
  if (thread < 128) {
    const int column = thread / kRows, row = thread % kRows;
    const Bf16 pre = __float2bfloat16(sigmoid(affine(column, row, 0)));
    s.pre[row][column] = __bfloat162float(pre);
    if (row / 4 == rank && row < tile.rows)
      static_cast<Bf16*>(a.pre)[(tile.first + row) * kStreams + column] = pre;
  } else if (thread < 144) {
    const int row = own + thread % 4, column = (thread - 128) / 4;
    if (row < tile.rows)
      static_cast<Bf16*>(a.post)[(tile.first + row) * kStreams + column] =
          __float2bfloat16(2.0f * sigmoid(affine(kStreams + column, row, 1)));
  }
  __syncthreads();
  if (thread >= 192) {
    const int element = thread % 16, row = own + (thread - 192) / 16;
    const float v = sinkhorn_element(affine(2 * kStreams + element, row, 2));
    if (row < tile.rows)
      static_cast<Bf16*>(a.res)[(tile.first + row) * kStreams * kStreams + element] = __float2bfloat16(v);
  }
}

#endif

__global__ void __launch_bounds__(kThreads, 2)
    mhc_site_kernel(const __grid_constant__ SiteArgs args, const __grid_constant__ RowGroups norm_runs,
                    const __grid_constant__ RowGroups pre_runs) {
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900
  extern __shared__ __align__(128) unsigned char memory[];
  Shared& s = *reinterpret_cast<Shared*>(memory);
  const MhcArgs& a = args.mhc;
  const cg::cluster_group cluster = cg::this_cluster();
  const int rank = static_cast<int>(cluster.block_rank()), slice = rank * kSlice;
  const RowTile tile = row_tile(norm_runs, static_cast<int>(blockIdx.x) / kCluster);
  if (a.branch) {
    for (int i = threadIdx.x; i < kRows * kOldColumns; i += kThreads) {
      const int row = i / kOldColumns, column = i % kOldColumns;
      const std::int64_t n = tile.first + row;
      s.old[row][column] =
          row >= tile.rows ? 0.f
          : column < kStreams
              ? to_float(static_cast<const Bf16*>(a.post)[n * kStreams + column])
              : to_float(static_cast<const Bf16*>(a.res)[n * kStreams * kStreams + column - kStreams]);
    }
    __syncthreads();
  }
  load_streams(s, a, tile, slice);
  __syncthreads();
  project(s, args.phi + static_cast<std::int64_t>(tile.group * kCluster + rank) * kSteps * kTiles * 32);
  cluster.sync();
  coefficients(s, a, tile, cluster);

  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  uint4 mixed[kTasks];
  float squares[4] = {};
#pragma unroll
  for (int task = 0; task < kTasks; ++task) {
    const int local = task_row(task), row = 4 * warp + local;
    float sum[8] = {};
#pragma unroll
    for (int j = 0; j < kStreams; ++j) {
      float x[8];
      unpack(*reinterpret_cast<const uint4*>(&s.x[j][row][task_chunk(task) * 8]), x);
#pragma unroll
      for (int e = 0; e < 8; ++e) sum[e] = fmaf(s.pre[row][j], x[e], sum[e]);
    }
    mixed[task] = pack(sum);
    const float square = sum_of_squares(mixed[task]);
#pragma unroll
    for (int r = 0; r < 4; ++r) squares[r] += r == local ? square : 0.f;
  }
  store_row_sums(squares, s.mixed_squares);
  cluster.sync();
  // Lane: part lane % 8 of the warp's row lane / 8.
  float total = *cluster.map_shared_rank(&s.mixed_squares[4 * warp + lane / 8], lane % 8);
  auto arrival = cluster.barrier_arrive();
#pragma unroll
  for (int step = 4; step > 0; step /= 2) total += __shfl_xor_sync(~0u, total, step);
  const float scale = 1.0f / sqrtf(total / static_cast<float>(kWidth) + a.pre_eps);
#pragma unroll
  for (int task = 0; task < kTasks; ++task) {
    const int local = task_row(task), row = 4 * warp + local;
    const float row_scale = __shfl_sync(~0u, scale, 8 * local);
    if (row >= tile.rows) continue;
    const std::int64_t n = tile.first + row;
    const int column = slice + task_chunk(task) * 8;
    const float4* weight = reinterpret_cast<const float4*>(
        a.pre_weight + static_cast<std::int64_t>(pre_runs.of(n)) * kWidth + column);
    const float4 low = __ldg(weight), high = __ldg(weight + 1);
    const float w[8] = {low.x, low.y, low.z, low.w, high.x, high.y, high.z, high.w};
    float x[8];
    unpack(mixed[task], x);
#pragma unroll
    for (int e = 0; e < 8; ++e) x[e] *= row_scale * (w[e] + 1.0f);
    *reinterpret_cast<uint4*>(static_cast<Bf16*>(a.out) + n * kWidth + column) = pack(x);
  }
  cluster.barrier_wait(std::move(arrival));  // the others may still read this block's sums
#endif
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
  int device = 0, major = 0;
  const auto aligned = [](const void* p) { return reinterpret_cast<std::uintptr_t>(p) % 16 == 0; };
  return dtype == DType::bf16 && a.streams_count == kStreams && a.width == kWidth &&
         a.branch_pitch % 8 == 0 && aligned(a.streams) && aligned(a.branch) && aligned(a.out) &&
         aligned(a.pre_weight) && cudaGetDevice(&device) == cudaSuccess &&
         cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device) == cudaSuccess &&
         major == 9;
}

std::int64_t mhc_sm90_scratch(int norm_groups) {
  return std::int64_t{16} * norm_groups * kCluster * kSteps * kTiles * 32;
}

void mhc_site_sm90(const MhcArgs& args, int norm_groups, const RowGroups& norm_runs,
                   const RowGroups& pre_runs, void* scratch, cudaStream_t stream) {
  const int pieces = static_cast<int>(mhc_sm90_scratch(norm_groups) / 16);
  auto* packed = static_cast<uint4*>(scratch);
  pack_phi_kernel<<<(pieces + 255) / 256, 256, 0, stream>>>(args.phi, args.norm_weight, packed, pieces);
  int tiles = 0;
  for (int i = 0, begin = 0; i < norm_runs.count; begin = norm_runs.end[i++])
    tiles += (norm_runs.end[i] - begin + kRows - 1) / kRows;
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
  check_cuda(cudaLaunchKernelEx(&config, mhc_site_kernel, SiteArgs{args, packed}, norm_runs, pre_runs),
             "mhc_site");
  check_launch("mhc_site");
}

}  // namespace magi::cuda
