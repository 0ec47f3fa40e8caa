// SPDX-License-Identifier: Apache-2.0
// Linear layers: a product per run of rows of one weight group, then bias, gate and cast in one pass where
// there are any. On Hopper most that are not one product are one kernel (linear_sm90.cu).
#include <algorithm>
#include <cstring>

#include "ops/checks.h"
#include "ops/cuda/cuda_ops.h"
#include "ops/cuda/gated.cuh"
#include "ops/cuda/linear_sm90.h"
#include "ops/cuda/matrix_products.h"
#include "ops/cuda/rows.cuh"
#include "ops/lines.h"

namespace magi {
namespace {

using namespace cuda;

constexpr int kThreads = 128;
constexpr std::size_t kWaiting = std::size_t{1} << 30;  ///< bytes of unfinished products, about

/// What follows the product: p [rows, out] (contiguous) → y.
struct Finish {
  const void* p;
  const float* bias;  ///< or null
  void* y;
  std::int64_t y_pitch, rows, out;
  bool round_first;  ///< a gated epilogue starts from the product rounded to bf16
};

/// A thread makes V columns of y; `row_blocks` blocks make a row.
template <typename P, typename Y, Epilogue kEpilogue, int V>
__global__ __launch_bounds__(kThreads) void finish_kernel(const __grid_constant__ Finish f,
                                                          unsigned row_blocks) {
  constexpr bool kGated = kIsGated<kEpilogue>;
  constexpr int kInputs = kGated ? 2 * V : V;
  const std::int64_t row = blockIdx.x / row_blocks;
  const std::int64_t column = static_cast<std::int64_t>(blockIdx.x % row_blocks) * kThreads + threadIdx.x;
  if (column * kInputs >= f.out) return;
  const auto p = load_pack<kInputs>(static_cast<const P*>(f.p) + row * f.out + column * kInputs);
  float values[kInputs];
#pragma unroll
  for (int j = 0; j < kInputs; ++j)
    values[j] = to_float(p.v[j]) + (f.bias ? __ldg(f.bias + column * kInputs + j) : 0.f);
  Pack<Y, V> result;
#pragma unroll
  for (int j = 0; j < V; ++j) {
    if constexpr (kGated)
      result.v[j] = from_float<Y>(gated<kEpilogue, Y>(values[2 * j], values[2 * j + 1], f.round_first));
    else
      result.v[j] = from_float<Y>(values[j]);
  }
  store_pack(static_cast<Y*>(f.y) + row * f.y_pitch + column * V, result);
}

template <typename P, typename Y, Epilogue kEpilogue>
void finish(const Finish& f, bool wide, cudaStream_t stream) {
  constexpr int kWide = kIsGated<kEpilogue> ? 4 : 8;
  const std::int64_t columns = kIsGated<kEpilogue> ? f.out / 2 : f.out;
  const std::int64_t threads = columns / (wide ? kWide : 1);
  const auto row_blocks = static_cast<unsigned>((threads + kThreads - 1) / kThreads);
  const auto kernel = wide ? finish_kernel<P, Y, kEpilogue, kWide> : finish_kernel<P, Y, kEpilogue, 1>;
  kernel<<<static_cast<unsigned>(f.rows) * row_blocks, kThreads, 0, stream>>>(f, row_blocks);
  check_launch("linear");
}

void finish(const Tensor& p, const float* bias, Epilogue epilogue, bool round_first, Tensor y,
            cudaStream_t stream) {
  const std::int64_t out = p.dim(1);
  const Finish f{p.raw(), bias, y.raw(), y.pitch(), p.dim(0), out, round_first};
  const bool wide = vectors_fit(p, out, 8) && vectors_fit(y, y.dim(1), is_gated(epilogue) ? 4 : 8);
  with_element(p.dtype(), [&]<typename P>(P) {
    with_element(y.dtype(), [&]<typename Y>(Y) {
      if (epilogue == Epilogue::none)
        finish<P, Y, Epilogue::none>(f, wide, stream);
      else if (epilogue == Epilogue::swiglu7)
        finish<P, Y, Epilogue::swiglu7>(f, wide, stream);
      else
        finish<P, Y, Epilogue::silu_gate>(f, wide, stream);
    });
  });
}

/// Rows of a run go through in panels, so that waiting products stay small.
std::int64_t panel_rows(std::int64_t out, DType dtype) {
  return std::max<std::int64_t>(1024,
                                static_cast<std::int64_t>(kWaiting / (size_of(dtype) * out)) / 1024 * 1024);
}

/// Whether the product is the result, or is added to it as it is.
bool is_direct(const LinearWeight& w, Epilogue epilogue, const Tensor& y) {
  return !is_gated(epilogue) && !w.bias.defined() && (y.dtype() == w.dtype || y.dtype() == DType::f32);
}

DType product_dtype(const LinearWeight& w) {
  return w.bias.defined() ? DType::f32 : w.dtype;
}

/// `t` with zeros after each row.
Tensor widened(const Tensor& t, const Shape& shape) {
  if (t.shape() == shape) return t;
  Tensor wide = Tensor::zeros(t.dtype(), shape);
  const std::size_t element = size_of(t.dtype()), bytes = element * static_cast<std::size_t>(t.dim(1));
  for (std::int64_t row = 0; row < t.dim(0); ++row)
    std::memcpy(wide.rows(row, 1).raw(), t.rows(row, 1).raw(), bytes);
  return wide;
}

}  // namespace

LinearWeight CudaOps::pack_linear(const Tensor& weight, int groups, DType dtype, const Tensor& bias) {
  LinearWeight w = checks::linear_weight(weight, bias, groups, dtype);
  const Shape shape{weight.dim(0), line_pitch(w.in, dtype)};
  w.data = stream_ ? upload(widened(weight.to(dtype), shape)) : allocate(dtype, shape);
  if (bias.defined()) w.bias = stream_ ? upload(w.bias) : allocate(DType::f32, w.bias.shape());
  return w;
}

std::int64_t CudaOps::linear_scratch(const Tensor& x, const LinearWeight& w, const Segments& segments,
                                     Epilogue epilogue, const Tensor& y) const {
  if (is_direct(w, epilogue, y) || cuda::linear_sm90_takes(x, w, epilogue, y, device().index)) return 0;
  const RowGroups runs = row_groups(segments, w.groups, x.dim(0));
  std::int64_t longest = 0;
  for (int i = 0; i < runs.count; ++i)
    longest = std::max<std::int64_t>(longest, runs.end[i] - (i == 0 ? 0 : runs.end[i - 1]));
  const DType product = product_dtype(w);
  return std::min(panel_rows(w.out, product), longest) * w.out * static_cast<std::int64_t>(size_of(product));
}

void CudaOps::do_linear(const Tensor& x, const LinearWeight& w, const Segments& segments, Epilogue epilogue,
                        Tensor& y) {
  const cudaStream_t s = stream();
  if (!products_) products_ = std::make_shared<MatrixProducts>();
  if (cuda::linear_sm90_takes(x, w, epilogue, y, device().index))
    return cuda::linear_sm90(x, w, segments, epilogue, y, products_->counter(), s);
  const bool direct = is_direct(w, epilogue, y);
  const DType product = product_dtype(w);
  const RowGroups runs = row_groups(segments, w.groups, x.dim(0));
  for (int i = 0; i < runs.count; ++i) {
    const std::int64_t first = i == 0 ? 0 : runs.end[i - 1], end = runs.end[i];
    const Tensor matrix = w.data.rows(runs.group[i] * w.out, w.out).columns(0, w.in);
    if (direct) {
      Tensor to = y.rows(first, end - first);
      products_->multiply(x.rows(first, end - first), matrix, to, epilogue == Epilogue::add, s);
      continue;
    }
    const float* bias = w.bias.defined() ? elements<float>(w.bias) + runs.group[i] * w.out : nullptr;
    const std::int64_t panel = std::min(panel_rows(w.out, product), end - first);
    if (panel == 0) continue;
    const Tensor p = Tensor::view(scratch(), product, {panel, w.out}, nullptr, device());
    for (std::int64_t row = first; row < end; row += panel) {
      const std::int64_t count = std::min(panel, end - row);
      Tensor part = p.rows(0, count);
      products_->multiply(x.rows(row, count), matrix, part, false, s);
      finish(part, bias, epilogue, w.dtype == DType::bf16, y.rows(row, count), s);
    }
  }
}

}  // namespace magi
