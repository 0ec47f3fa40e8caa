// SPDX-License-Identifier: Apache-2.0
// Router for any architecture and size, in f32: 16 rows of a head a block; scores stay in shared memory.
#include <cuda_bf16.h>

#include <cfloat>

#include "ops/cuda/launch.cuh"
#include "ops/cuda/moe.h"

namespace magi::cuda {
namespace {

constexpr int kRows = 16;
constexpr int kThreads = 256;
constexpr int kMaxTopK = 32;

struct PortableRouteArgs {
  const void* z;
  std::int64_t z_pitch, rows;
  const float *gate, *bias;
  float scale;
  int* index;
  float* weight;
  int heads, experts, dim, top_k;
};

/// sigma[r][e] = σ(z_r·gate_e): a thread takes experts, 16 rows of each at a time.
__device__ void compute_sigmas(const PortableRouteArgs& a, const float* z, float* sigma, int head) {
  for (int e = threadIdx.x; e < a.experts; e += kThreads) {
    const float* gate = a.gate + (static_cast<std::int64_t>(head) * a.experts + e) * a.dim;
    float sum[kRows] = {};
    for (int k = 0; k < a.dim; ++k) {
      const float g = gate[k];
#pragma unroll
      for (int r = 0; r < kRows; ++r) sum[r] = fmaf(z[k * kRows + r], g, sum[r]);
    }
#pragma unroll
    for (int r = 0; r < kRows; ++r) sigma[r * a.experts + e] = 1.0f / (1.0f + expf(-sum[r]));
  }
}

/// Top k of one row by one warp; chosen experts are marked by σ < 0.
__device__ void choose(const PortableRouteArgs& a, float* sigma, std::int64_t row, int head) {
  const int lane = threadIdx.x % 32;
  const float* bias = a.bias + head * a.experts;
  float mine = 0, sum = 0;  // σ of choice number `lane`
  int mine_index = 0;
  for (int k = 0; k < a.top_k; ++k) {
    float best = -INFINITY;
    int at = a.experts;
    for (int e = lane; e < a.experts; e += 32) {
      if (sigma[e] < 0) continue;
      const float score =
          fmaxf(sigma[e] + bias[e], -FLT_MAX);  // NaN becomes a number, so that one is always found
      if (score > best) {
        best = score;
        at = e;
      }
    }
    for (int d = 16; d > 0; d /= 2) {
      const float other = __shfl_xor_sync(0xffffffffu, best, d);
      const int other_at = __shfl_xor_sync(0xffffffffu, at, d);
      if (other > best || (other == best && other_at < at)) {
        best = other;
        at = other_at;
      }
    }
    const float p = sigma[at];
    __syncwarp();
    if (lane == k) {
      mine = p;
      mine_index = at;
    }
    sum += fabsf(p);
    if (lane == 0) sigma[at] = -1.0f;
    __syncwarp();
  }
  if (lane >= a.top_k) return;
  const std::int64_t to = (row * a.heads + head) * a.top_k + lane;
  a.index[to] = mine_index;
  a.weight[to] = mine / fmaxf(sum, 1e-12f) * a.scale;
}

template <typename T>
__global__ __launch_bounds__(kThreads) void route_portable_kernel(
    const __grid_constant__ PortableRouteArgs a) {
  extern __shared__ float shared[];
  float* z = shared;                      // [dim][16]
  float* sigma = shared + a.dim * kRows;  // [16][experts]
  const int head = static_cast<int>(blockIdx.y);
  const std::int64_t first = static_cast<std::int64_t>(blockIdx.x) * kRows;
  for (int i = threadIdx.x; i < kRows * a.dim; i += kThreads) {
    const int r = i / a.dim, k = i % a.dim;
    const T* from =
        static_cast<const T*>(a.z) + (first + r) * a.z_pitch + static_cast<std::int64_t>(head) * a.dim;
    z[k * kRows + r] = first + r < a.rows ? static_cast<float>(from[k]) : 0.0f;
  }
  __syncthreads();
  compute_sigmas(a, z, sigma, head);
  __syncthreads();
  for (int r = threadIdx.x / 32; r < kRows; r += kThreads / 32)
    if (first + r < a.rows) choose(a, sigma + r * a.experts, first + r, head);
}

}  // namespace

bool moe_portable_takes(const MoeShape& shape) {
  return shape.dim >= 1 && shape.dim <= 256 && shape.hidden >= 1 && shape.experts >= 1 &&
         shape.experts <= 1024 && shape.top_k >= 1 && shape.top_k <= kMaxTopK &&
         shape.top_k <= shape.experts && shape.heads >= 1 && shape.rows * shape.top_k < (1ll << 31);
}

void route_portable(const void* z, std::int64_t z_pitch, DType dtype, const float* gate, const float* bias,
                    float scale, int* index, float* weight, const MoeShape& shape, cudaStream_t stream) {
  if (shape.rows == 0) return;
  const PortableRouteArgs args{z,     z_pitch, shape.rows,  gate,          bias,      scale,
                               index, weight,  shape.heads, shape.experts, shape.dim, shape.top_k};
  const int bytes = static_cast<int>(sizeof(float)) * kRows * (shape.dim + shape.experts);
  const dim3 grid(static_cast<unsigned>((shape.rows + kRows - 1) / kRows),
                  static_cast<unsigned>(shape.heads));
  auto* kernel = dtype == DType::bf16 ? route_portable_kernel<__nv_bfloat16> : route_portable_kernel<float>;
  check_cuda(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes),
             "route_portable");
  kernel<<<grid, kThreads, bytes, stream>>>(args);
  check_launch("route_portable");
}

}  // namespace magi::cuda
