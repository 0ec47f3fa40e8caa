// SPDX-License-Identifier: Apache-2.0
// Operations that treat each element (or each whole row) alone.
#include <cmath>
#include <cstring>

#include "ops/cpu/cpu_ops.h"
#include "ops/cpu/rows.h"
#include "ops/cpu/vector_math.h"

namespace magi {
namespace {

template <typename X, typename Y>
MAGI2_SIMD void convert(const X* x, Y* y, std::int64_t count) {
  for_lanes(count, [&](std::int64_t i, auto n) MAGI2_INLINE_LAMBDA { store(y + i, load(x + i, n), n); });
}

template <typename A, typename B>
MAGI2_SIMD void add_to(A* a, const B* b, std::int64_t count) {
  for_lanes(count, [&](std::int64_t i, auto n)
                       MAGI2_INLINE_LAMBDA { store(a + i, load(a + i, n) + load(b + i, n), n); });
}

/// frequency = exp(alpha), gain = 1/(exp(beta) + 1e-9).
template <typename T>
MAGI2_SIMD void snake_row(const T* x, const float* frequency, const float* gain, std::int64_t d, T* y) {
  Ints beyond{};
  for_lanes(d, [&](std::int64_t i, auto n) MAGI2_INLINE_LAMBDA {
    const Floats v = load(x + i, n), angle = v * load(frequency + i, n);
    beyond |= angle * angle > kSinLimit * kSinLimit;
    store(y + i, v + load(gain + i, n) * sin_squared(angle), n);
  });
  bool any = false;
  for (std::int64_t lane = 0; lane < kLanes; ++lane) any |= beyond[lane] != 0;
  if (!any) return;
  for (std::int64_t i = 0; i < d; ++i) {
    const float v = static_cast<float>(x[i]), angle = v * frequency[i];
    const float s = std::sin(angle);
    if (std::abs(angle) > kSinLimit) y[i] = static_cast<T>(v + gain[i] * (s * s));
  }
}

template <typename T>
MAGI2_SIMD void pixels(const T* x, std::uint8_t* y, std::int64_t count) {
  for (std::int64_t i = 0; i < count; ++i) {
    float v = static_cast<float>(x[i]) * 0.5f + 0.5f;
    v = v > 0.0f ? v : 0.0f;  // NaN too
    v = v < 1.0f ? v : 1.0f;
    y[i] = static_cast<std::uint8_t>(v * 255.0f);
  }
}

}  // namespace

void CpuOps::do_embed(const Tensor& table, const Tensor& ids, Tensor& y) {
  const std::size_t row_bytes = static_cast<std::size_t>(table.dim(1)) * size_of(table.dtype());
  const std::size_t pitch_bytes = static_cast<std::size_t>(table.pitch()) * size_of(table.dtype());
  const std::int32_t* id = ids.data<std::int32_t>();
  const char* from = static_cast<const char*>(table.raw());
  char* to = static_cast<char*>(y.raw());
  parallel_for(ids.dim(0), [&](std::int64_t row) {
    std::memcpy(to + static_cast<std::size_t>(row) * row_bytes,
                from + static_cast<std::size_t>(id[row]) * pitch_bytes, row_bytes);
  });
}

void CpuOps::do_set_time_features(Tensor& x, const Tensor& features, const Segments& segments) {
  const std::int64_t width = features.dim(1);
  with_type(x.dtype(), [&]<typename T>(T) {
    for (const Segment& s : segments)
      for (std::int64_t row = s.first; row < s.first + s.rows; ++row)
        convert(features.data<float>() + (s.noised ? width : 0), x.data<T>() + row * x.pitch(), width);
  });
}

void CpuOps::do_cast(const Tensor& x, Tensor& y) {
  with_type(x.dtype(), [&]<typename X>(X) {
    with_type(y.dtype(), [&]<typename Y>(Y) {
      const X* in = x.data<X>();
      Y* out = y.data<Y>();
      if (x.contiguous()) {
        parallel_pieces(x.numel(), [&](std::int64_t i, std::int64_t n) { convert(in + i, out + i, n); });
      } else {
        const std::int64_t width = x.dim(1);
        parallel_for(x.dim(0), [&](std::int64_t r) { convert(in + r * x.pitch(), out + r * width, width); });
      }
    });
  });
}

void CpuOps::do_copy(Tensor& to, const Tensor& from) {
  const std::size_t element = size_of(from.dtype()), width = element * static_cast<std::size_t>(from.dim(1));
  if (width == 0) return;
  auto* out = static_cast<std::byte*>(to.raw());
  const auto* in = static_cast<const std::byte*>(from.raw());
  parallel_for(from.dim(0), [&](std::int64_t r) {
    const auto row = static_cast<std::size_t>(r) * element;
    std::memcpy(out + row * static_cast<std::size_t>(to.pitch()),
                in + row * static_cast<std::size_t>(from.pitch()), width);
  });
}

void CpuOps::do_add(Tensor& a, const Tensor& b) {
  with_type(a.dtype(), [&]<typename A>(A) {
    with_type(b.dtype(), [&]<typename B>(B) {
      A* to = a.data<A>();
      const B* from = b.data<B>();
      if (b.contiguous()) {
        parallel_pieces(a.numel(), [&](std::int64_t i, std::int64_t n) { add_to(to + i, from + i, n); });
      } else {
        const std::int64_t width = b.dim(1);
        parallel_for(b.dim(0), [&](std::int64_t r) { add_to(to + r * width, from + r * b.pitch(), width); });
      }
    });
  });
}

void CpuOps::do_snake(const Tensor& x, const Tensor& alpha, const Tensor& beta, Tensor& y) {
  const std::int64_t channels = x.dim(3);
  std::vector<float> frequency, gain;
  for (const float a : alpha.values<float>()) frequency.push_back(std::exp(a));
  for (const float b : beta.values<float>()) gain.push_back(1.0f / (std::exp(b) + 1e-9f));
  with_type(x.dtype(), [&]<typename T>(T) {
    const T* in = x.data<T>();
    T* out = y.data<T>();
    parallel_for(x.dim(0) * x.dim(1) * x.dim(2), [&](std::int64_t row) {
      snake_row(in + row * channels, frequency.data(), gain.data(), channels, out + row * channels);
    });
  });
}

void CpuOps::do_to_pixels(const Tensor& x, Tensor& y) {
  with_type(x.dtype(), [&]<typename T>(T) {
    const T* in = x.data<T>();
    std::uint8_t* out = y.data<std::uint8_t>();
    parallel_pieces(x.numel(), [&](std::int64_t i, std::int64_t n) { pixels(in + i, out + i, n); });
  });
}

void CpuOps::do_tanh(const Tensor& x, Tensor& y) {
  with_type(x.dtype(), [&]<typename T>(T) {
    const T* in = x.data<T>();
    T* out = y.data<T>();
    parallel_pieces(x.numel(), [&](std::int64_t first, std::int64_t n) {
      for (std::int64_t i = first; i < first + n; ++i)
        out[i] = static_cast<T>(std::tanh(static_cast<float>(in[i])));
    });
  });
}

}  // namespace magi
