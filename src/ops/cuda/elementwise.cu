// SPDX-License-Identifier: Apache-2.0
// Operations that treat each element, or each row as a whole, alone: memory traffic.
#include "ops/cuda/cuda_ops.h"
#include "ops/cuda/rows.cuh"

namespace magi {
namespace {

using namespace cuda;

constexpr int kThreads = 256;

/// A matrix of `width` columns, `pitch` elements from row to row, as vectors of V elements.
template <typename T>
struct Rows {
  T* data;
  std::int64_t pitch;
};
template <typename T, typename Raw>
Rows<T> rows_of(Raw& t) {
  return {static_cast<T*>(t.raw()), t.pitch()};
}

/// y = x as Y, or y += x.
template <typename X, typename Y, int V, bool kAdd>
__global__ __launch_bounds__(kThreads) void convert_kernel(Rows<const X> x, Rows<Y> y, std::int64_t width,
                                                           std::int64_t vectors) {
  const std::int64_t i = static_cast<std::int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (i >= vectors) return;
  const std::int64_t per_row = width / V, row = i / per_row, column = i % per_row * V;
  const auto from = load_pack<V>(x.data + row * x.pitch + column);
  Y* to = y.data + row * y.pitch + column;
  Pack<Y, V> result;
  if constexpr (kAdd) result = load_pack<V>(to);
#pragma unroll
  for (int j = 0; j < V; ++j)
    result.v[j] = from_float<Y>(kAdd ? to_float(result.v[j]) + to_float(from.v[j]) : to_float(from.v[j]));
  store_pack(to, result);
}

template <bool kAdd>
void convert(const Tensor& x, Tensor& y, cudaStream_t stream) {
  if (x.numel() == 0) return;
  const bool flat = x.contiguous() && y.contiguous();
  const std::int64_t width = flat ? x.numel() : x.dim(1);
  const bool wide = vectors_fit(x, width, 8) && vectors_fit(y, width, 8);
  const std::int64_t vectors = x.numel() / (wide ? 8 : 1);
  const auto blocks = static_cast<unsigned>((vectors + kThreads - 1) / kThreads);
  with_element(x.dtype(), [&]<typename X>(X) {
    with_element(y.dtype(), [&]<typename Y>(Y) {
      const auto from = rows_of<const X>(x);
      const auto to = rows_of<Y>(y);
      if (wide)
        convert_kernel<X, Y, 8, kAdd><<<blocks, kThreads, 0, stream>>>(from, to, width, vectors);
      else
        convert_kernel<X, Y, 1, kAdd><<<blocks, kThreads, 0, stream>>>(from, to, width, vectors);
    });
  });
  check_launch(kAdd ? "add" : "cast");
}

template <typename X, typename Y, int V>
__global__ __launch_bounds__(kThreads) void rms_norm_kernel(Rows<const X> x, Y* y, const float* weight,
                                                            float eps, int width,
                                                            const __grid_constant__ RowGroups groups) {
  const std::int64_t row = blockIdx.x;
  const X* from = x.data + row * x.pitch;
  float sum = 0;
  for (int i = threadIdx.x * V; i < width; i += kThreads * V) {
    const auto values = load_pack<V>(from + i);
#pragma unroll
    for (int j = 0; j < V; ++j) sum = fmaf(to_float(values.v[j]), to_float(values.v[j]), sum);
  }
  const float scale = 1.0f / sqrtf(block_sum(sum) / static_cast<float>(width) + eps);
  const float* w = weight + static_cast<std::int64_t>(groups.of(row)) * width;
  for (int i = threadIdx.x * V; i < width; i += kThreads * V) {
    const auto values = load_pack<V>(from + i);
    Pack<Y, V> result;
#pragma unroll
    for (int j = 0; j < V; ++j)
      result.v[j] = from_float<Y>(to_float(values.v[j]) * scale * (__ldg(w + i + j) + 1.0f));
    store_pack(y + row * width + i, result);
  }
}

/// Rows of `bytes` bytes.
__global__ __launch_bounds__(kThreads) void embed_kernel(const char* table, std::int64_t pitch,
                                                         const int* ids, char* y, std::int64_t bytes) {
  const std::int64_t row = blockIdx.x;
  for (std::int64_t i = threadIdx.x * 2; i < bytes; i += kThreads * 2)
    *reinterpret_cast<short*>(y + row * bytes + i) =
        *reinterpret_cast<const short*>(table + ids[row] * pitch + i);
}

template <typename T>
__global__ void time_features_kernel(T* x, std::int64_t pitch, const float* features, int width) {
  T* to = x + blockIdx.x * pitch;
  for (int i = threadIdx.x; i < width; i += blockDim.x) to[i] = from_float<T>(features[i]);
}

}  // namespace

void CudaOps::do_cast(const Tensor& x, Tensor& y) {
  convert<false>(x, y, stream());
}

void CudaOps::do_copy(Tensor& to, const Tensor& from) {
  convert<false>(from, to, stream());
}

void CudaOps::do_add(Tensor& a, const Tensor& b) {
  convert<true>(b, a, stream());
}

void CudaOps::do_rms_norm(const Tensor& x, const NormWeight& w, const Segments& segments, Tensor& y) {
  if (x.numel() == 0) return;
  const RowGroups groups = row_groups(segments, w.groups, x.dim(0));
  const int width = static_cast<int>(x.dim(1));
  const auto blocks = static_cast<unsigned>(x.dim(0));
  const bool wide = vectors_fit(x, width, 4) && vectors_fit(y, width, 4);
  with_element(x.dtype(), [&]<typename X>(X) {
    with_element(y.dtype(), [&]<typename Y>(Y) {
      const auto kernel = wide ? rms_norm_kernel<X, Y, 4> : rms_norm_kernel<X, Y, 1>;
      kernel<<<blocks, kThreads, 0, stream()>>>(rows_of<const X>(x), elements<Y>(y),
                                                elements<float>(w.weight), w.eps, width, groups);
    });
  });
  check_launch("rms_norm");
}

void CudaOps::do_embed(const Tensor& table, const Tensor& ids, Tensor& y) {
  if (y.numel() == 0) return;
  const auto size = static_cast<std::int64_t>(size_of(table.dtype()));
  embed_kernel<<<static_cast<unsigned>(ids.dim(0)), kThreads, 0, stream()>>>(
      elements<char>(table), table.pitch() * size, elements<int>(ids), elements<char>(y),
      table.dim(1) * size);
  check_launch("embed");
}

void CudaOps::do_set_time_features(Tensor& x, const Tensor& features, const Segments& segments) {
  const int width = static_cast<int>(features.dim(1));
  if (width == 0) return;
  with_element(x.dtype(), [&]<typename T>(T) {
    for (const Segment& s : segments) {
      if (s.rows == 0) continue;
      time_features_kernel<<<static_cast<unsigned>(s.rows), 128, 0, stream()>>>(
          elements<T>(x) + s.first * x.pitch(), x.pitch(), elements<float>(features) + (s.noised ? width : 0),
          width);
    }
  });
  check_launch("set_time_features");
}

}  // namespace magi
