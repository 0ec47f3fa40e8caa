// SPDX-License-Identifier: Apache-2.0
// RMS norm of the q and k heads, then the rotary embedding of their first dims, in place: one read and one
// write of q and k. In f32, with one rounding at the end. Heads that go elsewhere (to other ranks) are
// written there at once, with the values.
#include <algorithm>
#include <type_traits>

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

/// Where a head's first row lies, and elements from row to row.
template <typename T>
struct HeadPlaces {
  static constexpr int kMost = 128;
  T* data[kMost];
  int pitch[kMost];
};
struct InPlace {};

/// A block takes a row. A head takes kLanes lanes, each with 8 neighbouring dims whose angles and weights it
/// keeps for all of its heads; several heads are on their way at once. `half` is a multiple of 8.
template <typename T, int kLanes, typename Places>
__global__ __launch_bounds__(32 * kWarps,
                             3) void norm_rope_wide_kernel(T* qkv, std::int64_t pitch, int heads,
                                                           int kv_heads, Norm q, Norm k, const float* rope,
                                                           int half, const __grid_constant__ RowGroups groups,
                                                           const __grid_constant__ Places places) {
  constexpr bool kElsewhere = !std::is_same_v<Places, InPlace>;
  constexpr int kDim = 8 * kLanes, kHeads = 32 / kLanes, kAtOnce = 3, kStep = kWarps * kHeads;
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, at = lane % kLanes * 8;
  const std::int64_t row = blockIdx.x;
  const bool first = at < half, rotated = at < 2 * half;
  const int partner = !rotated ? lane : first ? lane + half / 8 : lane - half / 8;
  const auto read = [](const float* from, float(&to)[8]) {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const float4 v = __ldg(reinterpret_cast<const float4*>(from) + i);
      to[4 * i] = v.x, to[4 * i + 1] = v.y, to[4 * i + 2] = v.z, to[4 * i + 3] = v.w;
    }
  };
  const int group = groups.of(row);
  const auto gain = [&](const Norm& norm, float(&to)[8]) {
    read(norm.weight + (norm.groups > 1 ? group * kDim : 0) + at, to);
#pragma unroll
    for (float& v : to) v += 1.0f;
  };
  float gain_q[8], gain_k[8], sines[8] = {}, cosines[8] = {1, 1, 1, 1, 1, 1, 1, 1};
  gain(q, gain_q);
  gain(k, gain_k);
  if (rotated) {
    const float* angles = rope + row * 2 * half + (first ? at : at - half);
    read(angles, sines);
    read(angles + half, cosines);
  }
  T* x = qkv + row * pitch + at;
  const int total = heads + kv_heads, mine = warp * kHeads + lane / kLanes;
  // v goes along; the first of it is on its way while q and k are worked on.
  constexpr int kValues = kElsewhere ? 2 : 0;
  Pack<T, 8> values_in[kValues + 1];
  const int first_value = total + mine, end = total + kv_heads;
#pragma unroll
  for (int i = 0; i < kValues; ++i)
    if (const int h = first_value + i * kStep; h < end)
      values_in[i] = load_pack<8>(x + static_cast<std::int64_t>(h) * kDim);
  const auto store_elsewhere = [&](int h, const Pack<T, 8>& head) {
    if constexpr (kElsewhere) store_pack(places.data[h] + row * places.pitch[h] + at, head);
  };
  for (int begin = mine; begin < total + mine; begin += kAtOnce * kStep) {  // as often in every lane
    Pack<T, 8> in[kAtOnce];
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) {
      const int h = begin + i * kStep;
      in[i] = {};
      if (h < total) in[i] = load_pack<8>(x + static_cast<std::int64_t>(h) * kDim);
    }
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) {
      const int h = begin + i * kStep;
      const bool is_q = h < heads;
      float values[8], sum = 0;
#pragma unroll
      for (int j = 0; j < 8; ++j) {
        values[j] = to_float(in[i].v[j]);
        sum = fmaf(values[j], values[j], sum);
      }
      const float scale =
          1.0f / sqrtf(lanes_sum<kLanes>(sum) / static_cast<float>(kDim) + (is_q ? q.eps : k.eps));
      Pack<T, 8> out;
#pragma unroll
      for (int j = 0; j < 8; ++j) {
        values[j] = values[j] * scale * (is_q ? gain_q[j] : gain_k[j]);
        const float other = __shfl_sync(~0u, values[j], partner);
        out.v[j] = from_float<T>(values[j] * cosines[j] + (first ? -other : other) * sines[j]);
      }
      if (h >= total) continue;
      if constexpr (kElsewhere)
        store_elsewhere(h, out);
      else
        store_pack(x + static_cast<std::int64_t>(h) * kDim, out);
    }
  }
#pragma unroll
  for (int i = 0; i < kValues; ++i)
    if (const int h = first_value + i * kStep; h < end) store_elsewhere(h, values_in[i]);
  if constexpr (kElsewhere)
    for (int h = first_value + kValues * kStep; h < end; h += kStep)
      store_elsewhere(h, load_pack<8>(x + static_cast<std::int64_t>(h) * kDim));
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

bool fits(std::span<const HeadPart> parts, std::int64_t heads) {
  return heads <= HeadPlaces<float>::kMost && std::ranges::all_of(parts, [](const HeadPart& p) {
           return p.to.numel() == 0 || (vectors_fit(p.to, p.to.dim(1), 8) && p.to.pitch() < 1 << 30);
         });
}

template <typename T>
HeadPlaces<T> places_of(std::span<const HeadPart> parts, std::int64_t heads, std::int64_t kv_heads,
                        std::int64_t dim) {
  HeadPlaces<T> places;
  const std::int64_t ratio = heads / kv_heads;
  for (const HeadPart& p : parts) {
    Tensor to = p.to;
    std::int64_t column = 0;
    const auto append = [&](std::int64_t first, std::int64_t count) {
      for (std::int64_t h = first; h < first + count; ++h, column += dim) {
        places.data[h] = elements<T>(to) + column;
        places.pitch[h] = static_cast<int>(p.to.pitch());
      }
    };
    append(p.first * ratio, p.count * ratio);
    append(heads + p.first, p.count);
    append(heads + kv_heads + p.first, p.count);
  }
  return places;
}

}  // namespace

void CudaOps::do_qk_norm_rope(Tensor& qkv, std::int64_t heads, std::int64_t kv_heads,
                              const NormWeight& q_norm, const NormWeight& k_norm, const Tensor& rope,
                              const Segments& segments, std::span<const HeadPart> parts) {
  if (qkv.numel() == 0) return;
  const std::int64_t dim = qkv.dim(1) / (heads + 2 * kv_heads);
  const int half = static_cast<int>(rope.dim(1) / 2);
  const RowGroups groups = row_groups(segments, std::max(q_norm.groups, k_norm.groups), qkv.dim(0));
  const Norm q{elements<float>(q_norm.weight), q_norm.eps, q_norm.groups};
  const Norm k{elements<float>(k_norm.weight), k_norm.eps, k_norm.groups};
  const auto aligned = [](const Tensor& t) { return reinterpret_cast<std::uintptr_t>(t.raw()) % 16 == 0; };
  const bool wide = (dim == 128 || dim == 256) && vectors_fit(qkv, dim, 8) && half % 8 == 0 &&
                    aligned(rope) && aligned(q_norm.weight) && aligned(k_norm.weight);
  const std::size_t shared = sizeof(float) * static_cast<std::size_t>(2 * half + kWarps * dim);
  with_element(qkv.dtype(), [&]<typename T>(T) {
    const auto blocks = static_cast<unsigned>(qkv.dim(0));
    const int q_heads = static_cast<int>(heads), k_heads = static_cast<int>(kv_heads);
    const float* angles = elements<float>(rope);
    T* x = elements<T>(qkv);
    const auto launch = [&]<typename Places>(const Places& places) {
      const auto kernel =
          dim == 128 ? norm_rope_wide_kernel<T, 16, Places> : norm_rope_wide_kernel<T, 32, Places>;
      kernel<<<blocks, 32 * kWarps, 0, stream()>>>(x, qkv.pitch(), q_heads, k_heads, q, k, angles, half,
                                                   groups, places);
    };
    if (wide && !parts.empty() && fits(parts, heads + 2 * kv_heads)) {
      launch(places_of<T>(parts, heads, kv_heads, dim));
    } else if (wide) {
      launch(InPlace{});
      copy_heads(qkv, heads, kv_heads, parts);
    } else {
      norm_rope_kernel<T><<<blocks, 32 * kWarps, shared, stream()>>>(
          x, qkv.pitch(), q_heads, k_heads, static_cast<int>(dim), q, k, angles, half, groups);
      copy_heads(qkv, heads, kv_heads, parts);
    }
  });
  check_launch("qk_norm_rope");
}

}  // namespace magi
