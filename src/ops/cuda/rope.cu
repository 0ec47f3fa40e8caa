// SPDX-License-Identifier: Apache-2.0
// RMS norm of the q and k heads, then the rotary embedding of their first dims, in place: one read and one
// write of q and k. In f32, with one rounding at the end.
#include "ops/cuda/cuda_ops.h"
#include "ops/cuda/rows.cuh"

namespace magi {
namespace {

using namespace cuda;

constexpr int kWarps = 8;

struct Norm {
  const float* weight;
  float eps;
  int groups;
};

/// A block takes a row, a warp every eighth head. Shared memory: sin | cos of the row, then a head for each
/// warp, all f32.
template <typename T, int V>
__global__ __launch_bounds__(32 * kWarps) void norm_rope_kernel(T* qkv, std::int64_t pitch, int heads,
                                                                int kv_heads, int dim, Norm q, Norm k,
                                                                const float* rope, int half,
                                                                const __grid_constant__ RowGroups groups) {
  extern __shared__ float shared[];
  float* angles = shared;
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  float* head_values = shared + 2 * half + warp * dim;
  const std::int64_t row = blockIdx.x;
  for (int i = threadIdx.x; i < 2 * half; i += 32 * kWarps) angles[i] = rope[row * 2 * half + i];
  const int group = groups.of(row);
  __syncthreads();
  for (int h = warp; h < heads + kv_heads; h += kWarps) {
    T* x = qkv + row * pitch + static_cast<std::int64_t>(h) * dim;
    const Norm& norm = h < heads ? q : k;
    const float* w = norm.weight + (norm.groups > 1 ? group * dim : 0);
    float sum = 0;
    for (int i = lane * V; i < dim; i += 32 * V) {
      const auto values = load<T, V>(x + i);
#pragma unroll
      for (int j = 0; j < V; ++j) {
        const float v = widen(values.at[j]);
        head_values[i + j] = v;
        sum = fmaf(v, v, sum);
      }
    }
    const float scale = 1.0f / sqrtf(warp_sum(sum) / static_cast<float>(dim) + norm.eps);
    __syncwarp();
    for (int i = lane * V; i < dim; i += 32 * V) {
      Pack<T, V> result;
#pragma unroll
      for (int j = 0; j < V; ++j) {
        const int at = i + j;
        const bool first = at < half, rotated = at < 2 * half;
        const int partner = !rotated ? at : first ? at + half : at - half;
        const float a = head_values[at] * scale * (__ldg(w + at) + 1.0f);
        const float b = head_values[partner] * scale * (__ldg(w + partner) + 1.0f);
        const int angle = first ? at : at - half;
        float y = a;
        if (rotated) y = a * angles[half + angle] + (first ? -b : b) * angles[angle];
        result.at[j] = narrow<T>(y);
      }
      store(x + i, result);
    }
    __syncwarp();
  }
}

}  // namespace

void CudaOps::do_qk_norm_rope(Tensor& qkv, std::int64_t heads, std::int64_t kv_heads,
                              const NormWeight& q_norm, const NormWeight& k_norm, const Tensor& rope,
                              const Segments& segments) {
  if (qkv.numel() == 0) return;
  const std::int64_t dim = qkv.dim(1) / (heads + 2 * kv_heads);
  const int half = static_cast<int>(rope.dim(1) / 2);
  const RowGroups groups = row_groups(segments, std::max(q_norm.groups, k_norm.groups), qkv.dim(0));
  const Norm q{data_of<float>(q_norm.weight), q_norm.eps, q_norm.groups};
  const Norm k{data_of<float>(k_norm.weight), k_norm.eps, k_norm.groups};
  const std::size_t shared = sizeof(float) * static_cast<std::size_t>(2 * half + kWarps * dim);
  require(shared <= 160 * 1024, "qk_norm_rope: a head size of {} is too much for the GPU", dim);
  with_type(qkv.dtype(), [&]<typename T>(T) {
    const auto kernel = vectors_fit(qkv, dim, 4) ? norm_rope_kernel<T, 4> : norm_rope_kernel<T, 1>;
    if (shared > 48 * 1024)
      check_cuda(
          cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(shared)),
          "qk_norm_rope");
    kernel<<<static_cast<unsigned>(qkv.dim(0)), 32 * kWarps, shared, stream()>>>(
        data_of<T>(qkv), qkv.pitch(), static_cast<int>(heads), static_cast<int>(kv_heads),
        static_cast<int>(dim), q, k, data_of<float>(rope), half, groups);
  });
  check_launch("qk_norm_rope");
}

}  // namespace magi
