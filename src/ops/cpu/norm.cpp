// SPDX-License-Identifier: Apache-2.0
// Norms over rows: RMS norm with (1 + w), the DeltaNet's gated norm, and the decoders' norm over channels.
#include "ops/cpu/norm.h"

#include <cmath>

#include "ops/cpu/cpu_ops.h"
#include "ops/cpu/rows.h"

namespace magi {
namespace {

template <typename X, typename Y>
MAGI2_SIMD void rms_norm_row(const X* x, const float* w, float eps, std::int64_t d, Y* y) {
  normalise(x, w, eps, d, y);
}

template <typename T>
MAGI2_SIMD void gated_rms_norm_row(const T* x, const T* z, const float* w, float eps, std::int64_t d, T* y) {
  const float scale = rms_scale(x, d, eps);
  for_lanes(d, [&](std::int64_t i, auto n) MAGI2_INLINE_LAMBDA {
    store(y + i, load(x + i, n) * scale * load(w + i, n) * silu(load(z + i, n)), n);
  });
}

template <typename T, Activation kActivation>
MAGI2_SIMD void channel_norm_row(const T* x, const float* gamma, float eps, std::int64_t d, T* y) {
  float scale;
  if (gamma) {
    const float length = std::sqrt(sum_of_squares(x, d));
    scale = std::sqrt(static_cast<float>(d)) / (length < eps ? eps : length);
  } else {
    scale = rms_scale(x, d, eps);
  }
  for_lanes(d, [&](std::int64_t i, auto n) MAGI2_INLINE_LAMBDA {
    Floats v = load(x + i, n) * scale;
    if (gamma) v *= load(gamma + i, n);
    if constexpr (kActivation == Activation::relu) v = v < 0.0f ? Floats{} : v;
    if constexpr (kActivation == Activation::silu) v = silu(v);
    store(y + i, v, n);
  });
}

template <typename T, Activation kActivation>
void channel_norm_rows(const Tensor& x, const ChannelNorm& norm, Tensor& y) {
  const std::int64_t channels = x.dim(3);
  const T* in = x.data<T>();
  T* out = y.data<T>();
  const float* gamma = norm.kind == ChannelNorm::Kind::l2 ? norm.gamma.data<float>() : nullptr;
  parallel_for(x.dim(0) * x.dim(1) * x.dim(2), [&](std::int64_t row) {
    channel_norm_row<T, kActivation>(in + row * channels, gamma, norm.eps, channels, out + row * channels);
  });
}

}  // namespace

void CpuOps::do_rms_norm(const Tensor& x, const NormWeight& w, const Segments& segments, Tensor& y) {
  const std::int64_t d = x.dim(1);
  const auto groups = row_groups(segments, w.groups, x.dim(0));
  const float* weight = w.weight.data<float>();
  with_type(x.dtype(), [&]<typename X>(X) {
    with_type(y.dtype(), [&]<typename Y>(Y) {
      const X* in = x.data<X>();
      Y* out = y.data<Y>();
      parallel_for(x.dim(0), [&](std::int64_t row) {
        rms_norm_row(in + row * x.pitch(), weight + groups[row] * d, w.eps, d, out + row * d);
      });
    });
  });
}

void CpuOps::do_gated_rms_norm(const Tensor& x, const Tensor& z, const Tensor& weight, float eps, Tensor& y) {
  const std::int64_t width = x.dim(1), d = weight.dim(0), heads = width / d;
  const float* w = weight.data<float>();
  with_type(x.dtype(), [&]<typename T>(T) {
    const T* in = x.data<T>();
    const T* gate = z.data<T>();
    T* out = y.data<T>();
    parallel_for(x.dim(0), [&](std::int64_t row) {
      for (std::int64_t h = 0; h < heads; ++h)
        gated_rms_norm_row(in + row * x.pitch() + h * d, gate + row * z.pitch() + h * d, w, eps, d,
                           out + row * width + h * d);
    });
  });
}

void CpuOps::do_channel_norm(const Tensor& x, const ChannelNorm& norm, Tensor& y) {
  with_type(x.dtype(), [&]<typename T>(T) {
    switch (norm.activation) {
      case Activation::none:
        return channel_norm_rows<T, Activation::none>(x, norm, y);
      case Activation::relu:
        return channel_norm_rows<T, Activation::relu>(x, norm, y);
      case Activation::silu:
        return channel_norm_rows<T, Activation::silu>(x, norm, y);
    }
  });
}

}  // namespace magi
