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

/// A block takes a row, a warp every eighth head. A lane has 4 neighbouring dims of every 128, with their
/// angles and weights in registers for all heads; `half` is a multiple of 4.
template <typename T, int kPieces>
__global__ __launch_bounds__(32 *
                             kWarps) void norm_rope_wide_kernel(T* qkv, std::int64_t pitch, int heads,
                                                                int kv_heads, int dim, Norm q, Norm k,
                                                                const float* rope, int half,
                                                                const __grid_constant__ RowGroups groups) {
  __shared__ __align__(16) float exchange[kWarps][128 * kPieces];
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const std::int64_t row = blockIdx.x;
  const float* angles = rope + row * 2 * half;
  const int group = groups.of(row);
  const auto weights = [&](const Norm& norm) { return norm.weight + (norm.groups > 1 ? group * dim : 0); };
  float gain_q[kPieces][4], gain_k[kPieces][4], sines[kPieces][4], cosines[kPieces][4];
  int partner[kPieces];  // of the first of 4 dims
#pragma unroll
  for (int p = 0; p < kPieces; ++p) {
    const int at = p * 128 + lane * 4;
    const bool first = at < half, rotated = at < 2 * half;
    partner[p] = !rotated ? at : first ? at + half : at - half;
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      const bool real = at < dim;
      gain_q[p][j] = real ? __ldg(weights(q) + at + j) + 1.0f : 0.f;
      gain_k[p][j] = real ? __ldg(weights(k) + at + j) + 1.0f : 0.f;
      const int angle = (first ? at : at - half) + j;
      sines[p][j] = !rotated ? 0.f : first ? -__ldg(angles + angle) : __ldg(angles + angle);
      cosines[p][j] = rotated ? __ldg(angles + half + angle) : 1.f;
    }
  }
  for (int h = warp; h < heads + kv_heads; h += kWarps) {
    T* x = qkv + row * pitch + static_cast<std::int64_t>(h) * dim;
    float values[kPieces][4], sum = 0;
#pragma unroll
    for (int p = 0; p < kPieces; ++p) {
      const int at = p * 128 + lane * 4;
      Pack<T, 4> in{};
      if (at < dim) in = load_pack<4>(x + at);
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        values[p][j] = to_float(in.v[j]);
        sum = fmaf(values[p][j], values[p][j], sum);
      }
    }
    const bool is_q = h < heads;
    const float scale = 1.0f / sqrtf(warp_sum(sum) / static_cast<float>(dim) + (is_q ? q.eps : k.eps));
#pragma unroll
    for (int p = 0; p < kPieces; ++p) {
#pragma unroll
      for (int j = 0; j < 4; ++j) values[p][j] = values[p][j] * scale * (is_q ? gain_q[p][j] : gain_k[p][j]);
      *reinterpret_cast<float4*>(&exchange[warp][p * 128 + lane * 4]) =
          make_float4(values[p][0], values[p][1], values[p][2], values[p][3]);
    }
    __syncwarp();
#pragma unroll
    for (int p = 0; p < kPieces; ++p) {
      const int at = p * 128 + lane * 4;
      const float4 other = *reinterpret_cast<const float4*>(&exchange[warp][partner[p]]);
      const float others[4] = {other.x, other.y, other.z, other.w};
      Pack<T, 4> result;
#pragma unroll
      for (int j = 0; j < 4; ++j)
        result.v[j] = from_float<T>(values[p][j] * cosines[p][j] + others[j] * sines[p][j]);
      if (at < dim) store_pack(x + at, result);
    }
    __syncwarp();
  }
}

/// Any size. Shared memory: sin | cos of the row, then a head for each warp, all f32.
template <typename T>
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
    for (int i = lane; i < dim; i += 32) {
      const float v = to_float(x[i]);
      head_values[i] = v;
      sum = fmaf(v, v, sum);
    }
    const float scale = 1.0f / sqrtf(warp_sum(sum) / static_cast<float>(dim) + norm.eps);
    __syncwarp();
    for (int at = lane; at < dim; at += 32) {
      const bool first = at < half, rotated = at < 2 * half;
      const int partner = !rotated ? at : first ? at + half : at - half;
      const float a = head_values[at] * scale * (__ldg(w + at) + 1.0f);
      const float b = head_values[partner] * scale * (__ldg(w + partner) + 1.0f);
      const int angle = first ? at : at - half;
      x[at] = from_float<T>(rotated ? a * angles[half + angle] + (first ? -b : b) * angles[angle] : a);
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
  const Norm q{elements<float>(q_norm.weight), q_norm.eps, q_norm.groups};
  const Norm k{elements<float>(k_norm.weight), k_norm.eps, k_norm.groups};
  const bool wide = vectors_fit(qkv, dim, 4) && half % 4 == 0 && dim <= 256;
  const std::size_t shared = wide ? 0 : sizeof(float) * static_cast<std::size_t>(2 * half + kWarps * dim);
  with_element(qkv.dtype(), [&]<typename T>(T) {
    const auto kernel = !wide        ? norm_rope_kernel<T>
                        : dim <= 128 ? norm_rope_wide_kernel<T, 1>
                                     : norm_rope_wide_kernel<T, 2>;
    kernel<<<static_cast<unsigned>(qkv.dim(0)), 32 * kWarps, shared, stream()>>>(
        elements<T>(qkv), qkv.pitch(), static_cast<int>(heads), static_cast<int>(kv_heads),
        static_cast<int>(dim), q, k, elements<float>(rope), half, groups);
  });
  check_launch("qk_norm_rope");
}

}  // namespace magi
