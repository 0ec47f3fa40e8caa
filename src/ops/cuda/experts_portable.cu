// SPDX-License-Identifier: Apache-2.0
// Fused expert FFN for any architecture from sm_80 and any sizes (dim ≤ 256). bf16: 64 rows a block, four
// warps of 16 rows on mma.sync; hidden columns in chunks of 32, weights by cp.async, the next gate/up load
// running under the down product and the next down load under gate/up. NVFP4 weights are dequantised on the
// way to shared memory. f32: plain arithmetic, for checking.
#include <cuda_bf16.h>

#include "ops/cuda/launch.cuh"
#include "ops/cuda/moe.h"
#include "ops/cuda/nvfp4.cuh"

namespace magi::cuda {
namespace {

using Bf16 = __nv_bfloat16;

struct PortableArgs {
  const void *z, *gate, *up, *down;
  const unsigned char* nvfp4;  ///< instead of gate, up and down
  std::int64_t z_pitch, slots;
  const int* order;
  const int4* items;
  const int* head_items;
  void* expanded;
  int first_head, last_head, experts, dim, hidden, top_k;

  __device__ float nvfp4_weight(int expert, ExpertMatrix m, int column, int k) const {
    const Nvfp4Layout layout{experts, dim, hidden};
    return cuda::nvfp4_weight(nvfp4 + expert * layout.expert_bytes(), layout, m, column, k);
  }
};

/// Part of a work item: `rows` rows of an expert.
struct Part {
  int expert, head, rows;  ///< expert of the range's weights
  const int* slots;
};
/// Part `n` of the range's items, each cut into kMoeItemRows / kPartRows; false after the last.
template <int kPartRows>
__device__ bool part_of(const PortableArgs& a, int n, Part& part) {
  constexpr int kParts = kMoeItemRows / kPartRows;
  const int at = a.head_items[a.first_head] + n / kParts;
  if (at >= a.head_items[a.last_head]) return false;
  const int4 item = a.items[at];
  const int first = n % kParts * kPartRows;
  part = {item.x - a.first_head * a.experts, item.w, min(kPartRows, item.z - first),
          a.order + item.w * a.slots + item.y + first};
  return true;
}

// ---------------------------------------------------------------- bf16

constexpr int kRows = 64;
constexpr int kChunk = 32;
constexpr int kThreads = 128;

/// Shared tiles; 8 elements of padding a row keep ldmatrix free of bank conflicts.
template <int kDim>
struct PortableTiles {
  alignas(16) Bf16 z[kRows][kDim + 8];
  alignas(16) Bf16 gate[kDim][kChunk + 8], up[kDim][kChunk + 8];
  alignas(16) Bf16 down[kChunk][kDim + 8];
};

__device__ __forceinline__ std::uint32_t shared_at(const void* p) {
  return static_cast<std::uint32_t>(__cvta_generic_to_shared(p));
}

/// `count` ≤ kColumns elements of a row into shared memory, zeros behind; kColumns a multiple of 8. `wide` =
/// 16-byte copies are aligned and count is a multiple of 8.
template <int kColumns>
__device__ __forceinline__ void copy_piece(Bf16* to, const Bf16* from, int piece, int count, bool wide) {
  const int left = count - piece * 8;
  if (wide) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(shared_at(to + piece * 8)),
                 "l"(left > 0 ? from + piece * 8 : from), "r"(left > 0 ? 16 : 0)
                 : "memory");
  } else {
    for (int i = 0; i < 8; ++i) to[piece * 8 + i] = i < left ? from[piece * 8 + i] : __float2bfloat16(0.0f);
  }
}
__device__ __forceinline__ void commit() {
  asm volatile("cp.async.commit_group;" ::: "memory");
}
template <int kPending>
__device__ __forceinline__ void wait() {
  asm volatile("cp.async.wait_group %0;" ::"n"(kPending) : "memory");
}

__device__ __forceinline__ void load_a(std::uint32_t (&a)[4], const Bf16* tile, int pitch, int lane) {
  const Bf16* row = tile + (lane % 16) * pitch + lane / 16 * 8;
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
               : "=r"(a[0]), "=r"(a[1]), "=r"(a[2]), "=r"(a[3])
               : "r"(shared_at(row))
               : "memory");
}
/// 16 of K × 16 columns of a [K][N] tile: b[0..1] the first 8 columns, b[2..3] the others.
__device__ __forceinline__ void load_b(std::uint32_t (&b)[4], const Bf16* tile, int pitch, int lane) {
  const Bf16* row = tile + (lane % 16) * pitch + lane / 16 * 8;
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
               : "=r"(b[0]), "=r"(b[1]), "=r"(b[2]), "=r"(b[3])
               : "r"(shared_at(row))
               : "memory");
}
__device__ __forceinline__ void mma(float* d, const std::uint32_t* a, const std::uint32_t* b) {
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, "
      "{%0,%1,%2,%3};"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}

/// NaN in either argument gives NaN, as the CPU's clamps do.
__device__ __forceinline__ float swiglu7(float a, float b) {
  a = a > 7.0f ? 7.0f : a;
  b = b > 7.0f ? 7.0f : b < -7.0f ? -7.0f : b;
  return a / (1.0f + expf(-1.702f * a)) * (b + 1.0f);
}
__device__ __forceinline__ std::uint32_t pack(float low, float high) {
  const __nv_bfloat162 pair = __floats2bfloat162_rn(low, high);
  return *reinterpret_cast<const std::uint32_t*>(&pair);
}

template <int kDim>
__device__ void load_gate_up(PortableTiles<kDim>& s, const PortableArgs& a, int expert, int chunk,
                             bool wide) {
  if (a.nvfp4) {
    for (int i = threadIdx.x; i < kDim * kChunk; i += kThreads) {
      const int column = i / kDim, k = i % kDim, hidden = chunk * kChunk + column;
      const bool inside = k < a.dim && hidden < a.hidden;
      s.gate[k][column] =
          __float2bfloat16(inside ? a.nvfp4_weight(expert, ExpertMatrix::gate, hidden, k) : 0.0f);
      s.up[k][column] = __float2bfloat16(inside ? a.nvfp4_weight(expert, ExpertMatrix::up, hidden, k) : 0.0f);
    }
    return;
  }
  const std::int64_t base = static_cast<std::int64_t>(expert) * a.dim * a.hidden + chunk * kChunk;
  constexpr int kPieces = kChunk / 8;
  for (int i = threadIdx.x; i < kDim * kPieces; i += kThreads) {
    const int k = i / kPieces, piece = i % kPieces, count = k < a.dim ? a.hidden - chunk * kChunk : 0;
    const std::int64_t at = base + static_cast<std::int64_t>(min(k, a.dim - 1)) * a.hidden;
    copy_piece<kChunk>(s.gate[k], static_cast<const Bf16*>(a.gate) + at, piece, count, wide);
    copy_piece<kChunk>(s.up[k], static_cast<const Bf16*>(a.up) + at, piece, count, wide);
  }
}

template <int kDim>
__device__ void load_down(PortableTiles<kDim>& s, const PortableArgs& a, int expert, int chunk, bool wide) {
  if (a.nvfp4) {
    for (int i = threadIdx.x; i < kDim * kChunk; i += kThreads) {
      const int column = i / kChunk, k = i % kChunk, hidden = chunk * kChunk + k;
      const bool inside = column < a.dim && hidden < a.hidden;
      s.down[k][column] =
          __float2bfloat16(inside ? a.nvfp4_weight(expert, ExpertMatrix::down, column, hidden) : 0.0f);
    }
    return;
  }
  constexpr int kPieces = kDim / 8;
  for (int i = threadIdx.x; i < kChunk * kPieces; i += kThreads) {
    const int k = i / kPieces, piece = i % kPieces, hidden = chunk * kChunk + k;
    const std::int64_t at =
        (static_cast<std::int64_t>(expert) * a.hidden + min(hidden, a.hidden - 1)) * a.dim;
    copy_piece<kDim>(s.down[k], static_cast<const Bf16*>(a.down) + at, piece, hidden < a.hidden ? a.dim : 0,
                     wide);
  }
}

template <int kDim>
__device__ void load_z(PortableTiles<kDim>& s, const PortableArgs& a, const Part& part, bool wide) {
  constexpr int kPieces = kDim / 8;
  for (int i = threadIdx.x; i < kRows * kPieces; i += kThreads) {
    const int row = i / kPieces, piece = i % kPieces;
    const std::int64_t token = part.slots[min(row, part.rows - 1)] / a.top_k;
    const Bf16* from =
        static_cast<const Bf16*>(a.z) + token * a.z_pitch + static_cast<std::int64_t>(part.head) * a.dim;
    copy_piece<kDim>(s.z[row], from, piece, a.dim, wide);
  }
}

/// The chunk's hidden values of a warp's 16 rows, as A operands of the down product.
template <int kDim>
__device__ __forceinline__ void gate_up(const PortableTiles<kDim>& s, int warp, int lane,
                                        std::uint32_t (&h)[2][4]) {
  float gate[kChunk / 8][4] = {}, up[kChunk / 8][4] = {};
#pragma unroll 4
  for (int k = 0; k < kDim; k += 16) {
    std::uint32_t za[4], b[4];
    load_a(za, &s.z[warp * 16][k], kDim + 8, lane);
#pragma unroll
    for (int n = 0; n < kChunk; n += 16) {
      load_b(b, &s.gate[k][n], kChunk + 8, lane);
      mma(gate[n / 8], za, b);
      mma(gate[n / 8 + 1], za, b + 2);
      load_b(b, &s.up[k][n], kChunk + 8, lane);
      mma(up[n / 8], za, b);
      mma(up[n / 8 + 1], za, b + 2);
    }
  }
#pragma unroll
  for (int i = 0; i < kChunk / 8; ++i) {
    h[i / 2][i % 2 * 2] = pack(swiglu7(gate[i][0], up[i][0]), swiglu7(gate[i][1], up[i][1]));
    h[i / 2][i % 2 * 2 + 1] = pack(swiglu7(gate[i][2], up[i][2]), swiglu7(gate[i][3], up[i][3]));
  }
}

template <int kDim>
__device__ __forceinline__ void store(const PortableArgs& a, const Part& part,
                                      const float (&sum)[kDim / 8][4], int warp, int lane) {
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int row = warp * 16 + lane / 4 + half * 8;
    if (row >= part.rows) continue;
    Bf16* to = static_cast<Bf16*>(a.expanded) +
               ((part.head - a.first_head) * a.slots + part.slots[row]) * static_cast<std::int64_t>(a.dim);
#pragma unroll
    for (int n = 0; n < kDim / 8; ++n)
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const int column = n * 8 + lane % 4 * 2 + i;
        if (column < a.dim) to[column] = __float2bfloat16(sum[n][half * 2 + i]);
      }
  }
}

template <int kDim>
__global__ __launch_bounds__(kThreads) void experts_bf16_kernel(const __grid_constant__ PortableArgs a) {
  extern __shared__ __align__(16) unsigned char memory[];
  auto& s = *reinterpret_cast<PortableTiles<kDim>*>(memory);
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, chunks = (a.hidden + kChunk - 1) / kChunk;
  const bool wide = a.dim % 8 == 0 && a.hidden % 8 == 0 && a.z_pitch % 8 == 0;
  Part part;
  for (int n = blockIdx.x; part_of<kRows>(a, n, part); n += gridDim.x) {
    if (part.rows <= 0) continue;
    load_z(s, a, part, wide);
    load_gate_up(s, a, part.expert, 0, wide);
    commit();
    load_down(s, a, part.expert, 0, wide);
    commit();
    float sum[kDim / 8][4] = {};
    for (int chunk = 0; chunk < chunks; ++chunk) {
      std::uint32_t h[2][4];
      wait<1>();
      __syncthreads();
      gate_up(s, warp, lane, h);
      __syncthreads();
      if (chunk + 1 < chunks) load_gate_up(s, a, part.expert, chunk + 1, wide);
      commit();
      wait<1>();
      __syncthreads();
#pragma unroll
      for (int n8 = 0; n8 < kDim / 8; n8 += 2)
#pragma unroll
        for (int k = 0; k < 2; ++k) {
          std::uint32_t b[4];
          load_b(b, &s.down[k * 16][n8 * 8], kDim + 8, lane);
          mma(sum[n8], h[k], b);
          mma(sum[n8 + 1], h[k], b + 2);
        }
      __syncthreads();
      if (chunk + 1 < chunks) load_down(s, a, part.expert, chunk + 1, wide);
      commit();
    }
    wait<0>();
    store<kDim>(a, part, sum, warp, lane);
  }
}

// ---------------------------------------------------------------- f32

constexpr int kF32Rows = 16;
constexpr int kF32Chunk = 64;
constexpr int kF32Threads =
    256;  ///< 64 hidden columns × 4 groups of rows, then up to 256 columns of the result

__global__ __launch_bounds__(kF32Threads) void experts_f32_kernel(const __grid_constant__ PortableArgs a) {
  __shared__ float z[kF32Rows][256];
  __shared__ float h[kF32Rows][kF32Chunk];
  const int t = threadIdx.x;
  Part part;
  for (int n = blockIdx.x; part_of<kF32Rows>(a, n, part); n += gridDim.x) {
    if (part.rows <= 0) continue;
    __syncthreads();
    for (int i = t; i < kF32Rows * a.dim; i += kF32Threads) {
      const int row = i / a.dim, k = i % a.dim;
      const std::int64_t token = part.slots[min(row, part.rows - 1)] / a.top_k;
      z[row][k] = static_cast<const float*>(
          a.z)[token * a.z_pitch + static_cast<std::int64_t>(part.head) * a.dim + k];
    }
    const std::int64_t base = static_cast<std::int64_t>(part.expert) * a.dim * a.hidden;
    float sum[kF32Rows] = {};
    for (int first = 0; first < a.hidden; first += kF32Chunk) {
      const int column = first + t % kF32Chunk, rows = t / kF32Chunk * 4;
      __syncthreads();
      float gate[4] = {}, up[4] = {};
      for (int k = 0; k < a.dim && column < a.hidden; ++k) {
        const std::int64_t at = base + static_cast<std::int64_t>(k) * a.hidden + column;
        const float g = a.nvfp4 ? a.nvfp4_weight(part.expert, ExpertMatrix::gate, column, k)
                                : static_cast<const float*>(a.gate)[at];
        const float u = a.nvfp4 ? a.nvfp4_weight(part.expert, ExpertMatrix::up, column, k)
                                : static_cast<const float*>(a.up)[at];
#pragma unroll
        for (int r = 0; r < 4; ++r) {
          gate[r] = fmaf(z[rows + r][k], g, gate[r]);
          up[r] = fmaf(z[rows + r][k], u, up[r]);
        }
      }
#pragma unroll
      for (int r = 0; r < 4; ++r) h[rows + r][t % kF32Chunk] = swiglu7(gate[r], up[r]);
      __syncthreads();
      if (t >= a.dim) continue;
      for (int k = 0; k < min(kF32Chunk, a.hidden - first); ++k) {
        const float w =
            a.nvfp4
                ? a.nvfp4_weight(part.expert, ExpertMatrix::down, t, first + k)
                : static_cast<const float*>(a.down)[base + static_cast<std::int64_t>(first + k) * a.dim + t];
#pragma unroll
        for (int r = 0; r < kF32Rows; ++r) sum[r] = fmaf(h[r][k], w, sum[r]);
      }
    }
    if (t < a.dim) {
#pragma unroll
      for (int r = 0; r < kF32Rows; ++r)
        if (r < part.rows)
          static_cast<float*>(a.expanded)[((part.head - a.first_head) * a.slots + part.slots[r]) *
                                              static_cast<std::int64_t>(a.dim) +
                                          t] = sum[r];
    }
  }
}

template <int kDim>
void launch_bf16(const PortableArgs& args, int blocks, cudaStream_t stream) {
  constexpr int kBytes = sizeof(PortableTiles<kDim>);
  check_cuda(
      cudaFuncSetAttribute(experts_bf16_kernel<kDim>, cudaFuncAttributeMaxDynamicSharedMemorySize, kBytes),
      "run_experts_portable");
  experts_bf16_kernel<kDim><<<blocks, kThreads, kBytes, stream>>>(args);
}

}  // namespace

void run_experts_portable(const void* z, std::int64_t z_pitch, DType dtype, const PortableExperts& weights,
                          const SortedRouting& sorted, void* expanded, int first_head, int head_count,
                          const MoeShape& shape, cudaStream_t stream) {
  const PortableArgs args{z,
                          weights.gate,
                          weights.up,
                          weights.down,
                          static_cast<const unsigned char*>(weights.nvfp4),
                          z_pitch,
                          shape.rows * shape.top_k,
                          sorted.order,
                          sorted.items,
                          sorted.head_items,
                          expanded,
                          first_head,
                          first_head + head_count,
                          shape.experts,
                          shape.dim,
                          shape.hidden,
                          shape.top_k};
  int device = 0, processors = 0;
  check_cuda(cudaGetDevice(&device), "run_experts_portable");
  check_cuda(cudaDeviceGetAttribute(&processors, cudaDevAttrMultiProcessorCount, device),
             "run_experts_portable");
  if (dtype == DType::f32)
    experts_f32_kernel<<<processors * 4, kF32Threads, 0, stream>>>(args);
  else if (shape.dim <= 64)
    launch_bf16<64>(args, processors * 4, stream);
  else if (shape.dim <= 128)
    launch_bf16<128>(args, processors * 3, stream);
  else
    launch_bf16<256>(args, processors * 2, stream);
  check_launch("run_experts_portable");
}

}  // namespace magi::cuda
