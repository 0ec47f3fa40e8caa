// SPDX-License-Identifier: Apache-2.0
// Row-wise parts of the text encoder's Gated DeltaNet: the short causal convolution and the gated norm.
#include "ops/cuda/cuda_ops.h"
#include "ops/cuda/elements.cuh"

namespace magi {
namespace cuda {
namespace {

constexpr int kThreads = 256;

/// A warp a head of a row.
template <typename T, int kWidth>
__global__ void gated_rms_norm(const T* x, std::int64_t x_pitch, const T* z, std::int64_t z_pitch,
                               const float* weight, float eps, std::int64_t rows, int heads, int d, T* y) {
  const std::int64_t item = (static_cast<std::int64_t>(blockIdx.x) * kThreads + threadIdx.x) / 32;
  if (item >= rows * heads) return;
  const int lane = threadIdx.x % 32;
  const std::int64_t row = item / heads, column = (item - row * heads) * d;
  x += row * x_pitch + column;
  z += row * z_pitch + column;
  y += item * d;
  float squares = 0;
  for (int c = lane * kWidth; c < d; c += 32 * kWidth) {
    const auto pack = load_pack<kWidth>(x + c);
#pragma unroll
    for (int k = 0; k < kWidth; ++k) squares += to_float(pack.v[k]) * to_float(pack.v[k]);
  }
  const float scale = 1.0f / sqrtf(lanes_sum<32>(squares) / static_cast<float>(d) + eps);
  for (int c = lane * kWidth; c < d; c += 32 * kWidth) {
    auto pack = load_pack<kWidth>(x + c);
    const auto gate = load_pack<kWidth>(z + c);
#pragma unroll
    for (int k = 0; k < kWidth; ++k)
      pack.v[k] = from_float<T>(to_float(pack.v[k]) * scale * weight[c + k] * silu<T>(to_float(gate.v[k])));
    store_pack<kWidth>(y + c, pack);
  }
}

constexpr int kRunRows = 8;

/// A thread kWidth channels of kRunRows rows, so that a tap's weights are read once for them. weight
/// [channels, taps].
template <typename T, int kWidth>
__global__ void __launch_bounds__(kThreads)
    causal_conv_silu(const T* x, std::int64_t pitch, const float* weight, std::int64_t rows, int channels,
                     int taps, T* y) {
  const int c = static_cast<int>(blockIdx.x * kThreads + threadIdx.x) * kWidth;
  if (c >= channels) return;
  for (std::int64_t first = static_cast<std::int64_t>(blockIdx.y) * kRunRows; first < rows;
       first += static_cast<std::int64_t>(gridDim.y) * kRunRows) {
    float total[kRunRows][kWidth] = {};
    for (int tap = 0; tap < taps; ++tap) {
      float w[kWidth];
#pragma unroll
      for (int k = 0; k < kWidth; ++k) w[k] = weight[(c + k) * taps + tap];
#pragma unroll
      for (int r = 0; r < kRunRows; ++r) {
        const std::int64_t from = first + r - taps + 1 + tap;
        if (from < 0 || from >= rows) continue;
        const auto pack = load_pack<kWidth>(x + from * pitch + c);
#pragma unroll
        for (int k = 0; k < kWidth; ++k) total[r][k] += w[k] * to_float(pack.v[k]);
      }
    }
#pragma unroll
    for (int r = 0; r < kRunRows; ++r) {
      if (first + r >= rows) break;
      Pack<T, kWidth> out;
#pragma unroll
      for (int k = 0; k < kWidth; ++k) out.v[k] = from_float<T>(silu<T>(total[r][k]));
      store_pack<kWidth>(y + (first + r) * channels + c, out);
    }
  }
}

}  // namespace
}  // namespace cuda

void CudaOps::do_gated_rms_norm(const Tensor& x, const Tensor& z, const Tensor& weight, float eps,
                                Tensor& y) {
  if (x.numel() == 0) return;
  const std::int64_t d = weight.dim(0), heads = x.dim(1) / d, rows = x.dim(0);
  cuda::with_element(x.dtype(), [&]<typename T>(T) {
    cuda::with_width<T>(cuda::wide(x, d) && cuda::wide(z, d), [&](auto width) {
      cuda::gated_rms_norm<T, width()>
          <<<cuda::blocks_for(rows * heads * 32, cuda::kThreads), cuda::kThreads, 0, stream()>>>(
              cuda::elements<T>(x), x.pitch(), cuda::elements<T>(z), z.pitch(), weight.data<float>(), eps,
              rows, static_cast<int>(heads), static_cast<int>(d), cuda::elements<T>(y));
    });
  });
  cuda::check_launch("gated_rms_norm");
}

void CudaOps::do_causal_conv_silu(const Tensor& x, const Tensor& weight, Tensor& y) {
  if (x.numel() == 0) return;
  const std::int64_t rows = x.dim(0), channels = x.dim(1);
  cuda::with_element(x.dtype(), [&]<typename T>(T) {
    cuda::with_width<T>(cuda::wide(x, channels), [&](auto width) {
      constexpr std::int64_t kBlockChannels = cuda::kThreads * width();
      const std::int64_t runs = (rows + cuda::kRunRows - 1) / cuda::kRunRows;
      const dim3 grid(cuda::blocks_for(channels, kBlockChannels),
                      static_cast<unsigned>(std::min<std::int64_t>(runs, 65535)));
      cuda::causal_conv_silu<T, width()><<<grid, cuda::kThreads, 0, stream()>>>(
          cuda::elements<T>(x), x.pitch(), weight.data<float>(), rows, static_cast<int>(channels),
          static_cast<int>(weight.dim(1)), cuda::elements<T>(y));
    });
  });
  cuda::check_launch("causal_conv_silu");
}

}  // namespace magi
