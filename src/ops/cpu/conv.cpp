// SPDX-License-Identifier: Apache-2.0
// Convolutions over channels-last activations [T,H,W,C], as matrix products of gemm.h: an output cell is one
// row of such a product, so its bits depend on the inputs under its kernel alone, not on the size of the
// picture or on threads.
#include <algorithm>
#include <cstring>
#include <utility>

#include "ops/checks.h"
#include "ops/cpu/cpu_ops.h"
#include "ops/cpu/gemm.h"
#include "ops/cpu/rows.h"
#include "ops/cpu/vector_math.h"

namespace magi {
namespace {

using Index3 = std::array<std::int64_t, 3>;

std::int64_t taps_of(const ConvWeight& w) {
  return w.kernel[0] * w.kernel[1] * w.kernel[2];
}

/// Cells of [T,H,W] in memory order.
Index3 cell_at(std::int64_t i, const Shape& shape) {
  return {i / (shape[1] * shape[2]), i / shape[2] % shape[1], i % shape[2]};
}

const std::byte* address(const Tensor& t, std::int64_t element) {
  return static_cast<const std::byte*>(t.raw()) + static_cast<std::size_t>(element) * size_of(t.dtype());
}
std::byte* address(Tensor& t, std::int64_t element) {
  return static_cast<std::byte*>(t.raw()) + static_cast<std::size_t>(element) * size_of(t.dtype());
}

/// The three axes of `source` in another order.
Tensor permuted(const Tensor& source, const Index3& lengths, const std::array<std::size_t, 3>& order) {
  const Index3 strides{lengths[1] * lengths[2], lengths[2], 1};
  Tensor result = Tensor::empty(DType::f32, {source.numel()});
  const float* from = source.data<float>();
  float* to = result.data<float>();
  for (std::int64_t a = 0; a < lengths[order[0]]; ++a)
    for (std::int64_t b = 0; b < lengths[order[1]]; ++b)
      for (std::int64_t c = 0; c < lengths[order[2]]; ++c)
        *to++ = from[a * strides[order[0]] + b * strides[order[1]] + c * strides[order[2]]];
  return result;
}

template <typename T>
MAGI2_SIMD void add_bias(const float* x, const float* bias, std::int64_t d, T* y) {
  for_lanes(d, [&](std::int64_t i, auto n) MAGI2_INLINE_LAMBDA {
    store(y + i, bias ? load(x + i, n) + load(bias + i, n) : load(x + i, n), n);
  });
}

/// The inputs under the kernel of each output cell: rows of the product.
struct Patches {
  const Tensor& x;
  const ConvWeight& w;
  const ConvOptions& options;
  const Shape& out;

  /// Where tap `tap` of output position `i` lies on an axis.
  std::int64_t source(std::size_t axis, std::int64_t i, std::int64_t tap) const {
    return i * options.stride[axis] + tap * options.dilation[axis] - options.pad_front[axis];
  }
  bool inside(std::size_t axis, std::int64_t i) const { return i >= 0 && i < x.shape()[axis]; }

  /// One row, [kt,kh,kw,in] in dtype `to`, zeros where the kernel hangs over.
  void gather(std::int64_t cell, DType to, std::byte* row) const {
    const auto [t, h, v] = cell_at(cell, out);
    const std::int64_t line = w.kernel[2] * w.in;
    for (std::int64_t a = 0; a < w.kernel[0]; ++a)
      for (std::int64_t b = 0; b < w.kernel[1]; ++b) {
        const std::int64_t frame = source(0, t, a), y = source(1, h, b);
        if (inside(0, frame) && inside(1, y))
          gather_line((frame * x.dim(1) + y) * x.dim(2), v, to, row);
        else
          std::memset(row, 0, static_cast<std::size_t>(line) * size_of(to));
        row += static_cast<std::size_t>(line) * size_of(to);
      }
  }

  void gather_line(std::int64_t first_cell, std::int64_t v, DType to, std::byte* row) const {
    const std::int64_t step = options.dilation[2] == 1 ? w.kernel[2] : 1;  // neighbouring taps move together
    for (std::int64_t tap = 0; tap < w.kernel[2]; tap += step) {
      const std::int64_t begin = source(2, v, tap), end = begin + step;
      const std::int64_t from = std::clamp<std::int64_t>(begin, 0, x.dim(2));
      const std::int64_t until = std::clamp<std::int64_t>(end, from, x.dim(2));
      const auto bytes = [&](std::int64_t cells) {
        return static_cast<std::size_t>(cells * w.in) * size_of(to);
      };
      const std::int64_t before = until > from ? from - begin : step;
      std::memset(row, 0, bytes(before));
      if (until > from) {
        const std::int64_t count = (until - from) * w.in;
        copy_block(address(x, (first_cell + from) * w.in), x.dtype(), count, 1, count, row + bytes(before),
                   to, 1, count);
        std::memset(row + bytes(until - begin), 0, bytes(end - until));
      }
      row += bytes(step);
    }
  }
};

/// body(worker, a [kTileRows, k], c [kTileRows, n], i) for i < count, shared out among threads; `a` starts as
/// zeros.
template <typename Body>
void parallel_products(const Gemm& gemm, std::int64_t count, const Body& body) {
#pragma omp parallel
  {
    Gemm::Worker multiply(gemm);
    Tensor a = Tensor::zeros(gemm.input(), {kTileRows, gemm.k()});
    Tensor c = Tensor::empty(DType::f32, {kTileRows, gemm.n()});
#pragma omp for schedule(dynamic)
    for (std::int64_t i = 0; i < count; ++i) body(multiply, a, c, i);
  }
}

const float* values_or_null(const Tensor& bias) {
  return bias.defined() ? bias.data<float>() : nullptr;
}

template <typename T>
void dense_conv(const Tensor& x, const ConvWeight& w, const ConvOptions& options, Tensor& y) {
  const ColumnTiles columns(w.dtype, taps_of(w) * w.in, w.out);
  const Gemm& gemm = *columns.gemm;
  const Patches patches{x, w, options, y.shape()};
  const float* bias = values_or_null(w.bias);
  const std::int64_t cells = y.numel() / w.out;
  T* out = y.data<T>();
  parallel_products(gemm, (cells + kTileRows - 1) / kTileRows,
                    [&](Gemm::Worker& multiply, Tensor& a, Tensor& c, std::int64_t tile) {
                      const std::int64_t first = tile * kTileRows, rows = std::min(kTileRows, cells - first);
                      for (std::int64_t r = 0; r < rows; ++r)
                        patches.gather(first + r, gemm.input(), address(a, r * gemm.k()));
                      for (std::int64_t j = 0; j < columns.count; ++j) {
                        multiply(a.raw(), columns.tile(w.data.raw(), j), c.data<float>(), rows);
                        const std::int64_t column = j * gemm.n();
                        for (std::int64_t r = 0; r < rows; ++r)
                          add_bias(c.data<float>() + r * gemm.n(), bias ? bias + column : nullptr,
                                   columns.width(j), out + (first + r) * w.out + column);
                      }
                    });
}

/// One channel a group: data is [taps, channels] f32.
template <typename T>
MAGI2_SIMD void add_tap(const T* x, const float* weight, std::int64_t channels, float* total) {
  for_lanes(channels, [&](std::int64_t i, auto n) MAGI2_INLINE_LAMBDA {
    store(total + i, load(total + i, n) + load(x + i, n) * load(weight + i, n), n);
  });
}

template <typename T>
void depthwise_conv(const Tensor& x, const ConvWeight& w, const ConvOptions& options, Tensor& y) {
  const Patches patches{x, w, options, y.shape()};
  const float *weight = w.data.data<float>(), *bias = values_or_null(w.bias);
  const T* in = x.data<T>();
  T* out = y.data<T>();
  parallel_for(y.numel() / w.out, [&](std::int64_t cell) {
    thread_local std::vector<float> total;
    total.assign(static_cast<std::size_t>(w.out), 0.0f);
    const Index3 at = cell_at(cell, y.shape());
    for (std::int64_t tap = 0; tap < taps_of(w); ++tap) {
      const Index3 offset{tap / (w.kernel[1] * w.kernel[2]), tap / w.kernel[2] % w.kernel[1],
                          tap % w.kernel[2]};
      Index3 from{};
      for (std::size_t axis = 0; axis < 3; ++axis) from[axis] = patches.source(axis, at[axis], offset[axis]);
      if (!patches.inside(0, from[0]) || !patches.inside(1, from[1]) || !patches.inside(2, from[2])) continue;
      const std::int64_t source = (from[0] * x.dim(1) + from[1]) * x.dim(2) + from[2];
      add_tap(in + source * w.in, weight + tap * w.in, w.in, total.data());
    }
    add_bias(total.data(), bias, w.out, out + cell * w.out);
  });
}

/// Along the last axis. The product gives every input cell's part in every tap, [k, out]; an output cell adds
/// its parts up in the order of taps. A tile of inputs serves the outputs that need no others.
template <typename T>
struct TransposedConv {
  const Tensor& x;
  const ConvWeight& w;
  Tensor& y;
  std::int64_t stride, dilation, front;
  std::int64_t kernel = w.kernel[2], parts = kernel * w.out, length = x.dim(2), out_length = y.dim(2);

  /// First and last input (possibly outside) of output o: those with o + front = i·stride + tap·dilation.
  std::int64_t first_input(std::int64_t o) const {
    const std::int64_t p = o + front - (kernel - 1) * dilation;
    return p >= 0 ? (p + stride - 1) / stride : -(-p / stride);
  }
  std::int64_t last_input(std::int64_t o) const { return (o + front) / stride; }

  void run() const {
    const std::int64_t reach =
        ((kernel - 1) * dilation + stride - 1) / stride;  // inputs an output needs, less one
    require(reach + 1 < kTileRows, "conv: a transposed kernel of {} taps at stride {} is too long", kernel,
            stride);
    const std::int64_t outputs = (kTileRows - reach - 1) * stride;  // of a tile of inputs
    const std::int64_t tiles = (out_length + outputs - 1) / outputs, lines = x.dim(0) * x.dim(1);
    const ColumnTiles columns(w.dtype, w.in, parts);
    parallel_products(
        *columns.gemm, lines * tiles, [&](Gemm::Worker& multiply, Tensor& a, Tensor& c, std::int64_t i) {
          const std::int64_t line = i / tiles, begin = i % tiles * outputs;
          const std::int64_t end = std::min(out_length, begin + outputs);
          const std::int64_t from = std::max<std::int64_t>(0, first_input(begin));
          const std::int64_t until = std::min(length, last_input(end - 1) + 1);
          const Tensor products = multiply_line(columns, multiply, a, c, line * length + from, until - from);
          for (std::int64_t o = begin; o < end; ++o) add_parts(products, from, until, line, o);
        });
  }

  Tensor multiply_line(const ColumnTiles& columns, Gemm::Worker& multiply, Tensor& a, Tensor& c,
                       std::int64_t first, std::int64_t rows) const {
    Tensor products = Tensor::empty(DType::f32, {kTileRows, parts});
    if (rows <= 0) return products;
    const Gemm& gemm = *columns.gemm;
    copy_block(address(x, first * w.in), x.dtype(), w.in, rows, w.in, a.raw(), gemm.input(), rows, gemm.k());
    for (std::int64_t j = 0; j < columns.count; ++j) {
      multiply(a.raw(), columns.tile(w.data.raw(), j), c.data<float>(), rows);
      for (std::int64_t r = 0; r < rows; ++r)
        std::copy_n(c.data<float>() + r * gemm.n(), columns.width(j),
                    products.data<float>() + r * parts + j * gemm.n());
    }
    return products;
  }

  void add_parts(const Tensor& products, std::int64_t from, std::int64_t until, std::int64_t line,
                 std::int64_t o) const {
    thread_local std::vector<float> total;
    total.assign(static_cast<std::size_t>(w.out), 0.0f);
    for (std::int64_t tap = 0; tap < kernel; ++tap) {
      const std::int64_t p = o + front - tap * dilation;
      if (p < 0 || p % stride != 0 || p / stride < from || p / stride >= until) continue;
      const float* part = products.data<float>() + (p / stride - from) * parts + tap * w.out;
      add_bias(part, total.data(), w.out, total.data());
    }
    add_bias(total.data(), values_or_null(w.bias), w.out, y.data<T>() + (line * out_length + o) * w.out);
  }
};

}  // namespace

ConvWeight CpuOps::pack_conv(const Tensor& weight, const Tensor& bias, bool depthwise, bool transposed,
                             DType dtype) {
  ConvWeight w = checks::conv_weight(weight, bias, depthwise, transposed, dtype);
  const Shape& shape = weight.shape();
  // A dry run looks at no value: those of a large kernel take seconds to be put in order.
  const bool dry = arena().counts_only();
  const Tensor values = dry ? Tensor() : weight.to(dtype).to(DType::f32);
  const Index3 axes{shape[0], shape[1], taps_of(w)};
  const auto matrix = [&](const std::array<std::size_t, 3>& order, Shape rows) {
    return dry ? Tensor::view(nullptr, DType::f32, std::move(rows))
               : permuted(values, axes, order).reshape(std::move(rows));
  };
  const auto product = [&](const Tensor& m) { return pack_linear(m, 1, dtype, {}).data; };
  if (depthwise)
    w.data = upload(matrix({1, 2, 0}, {taps_of(w), w.out}));
  else if (transposed)
    w.data = product(matrix({2, 1, 0}, {taps_of(w) * w.out, w.in}));
  else
    w.data = product(matrix({0, 2, 1}, {w.out, taps_of(w) * w.in}));
  return w;
}

void CpuOps::do_conv(const Tensor& x, const ConvWeight& w, const ConvOptions& options, Tensor& y) {
  with_type(x.dtype(), [&]<typename T>(T) {
    if (w.depthwise)
      depthwise_conv<T>(x, w, options, y);
    else if (w.transposed)
      TransposedConv<T>{x, w, y, options.stride[2], options.dilation[2], options.pad_front[2]}.run();
    else
      dense_conv<T>(x, w, options, y);
  });
}

}  // namespace magi
