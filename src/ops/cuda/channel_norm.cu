// SPDX-License-Identifier: Apache-2.0
// The decoders' norm over channels, and its activation. A few lanes share a row; its second reading comes
// from L1, so memory sees one.
#include "ops/cuda/cuda_ops.h"
#include "ops/cuda/elements.cuh"

namespace magi {
namespace cuda {
namespace {

constexpr int kThreads = 256;

struct ChannelNormArgs {
  const void* x;
  void* y;
  const float* gamma;  ///< null: RMS
  float eps;
  std::int64_t rows;
  int channels;
  Activation activation;
};

template <typename T, int kWidth, int kLanes>
__global__ void channel_norm(const ChannelNormArgs a) {
  const int lane = threadIdx.x % kLanes;
  const std::int64_t row = static_cast<std::int64_t>(blockIdx.x) * (kThreads / kLanes) + threadIdx.x / kLanes;
  const std::int64_t at = min(row, a.rows - 1) * a.channels;  // every lane takes part in the sum
  const T* x = static_cast<const T*>(a.x) + at;
  float squares = 0;
  for (int c = lane * kWidth; c < a.channels; c += kLanes * kWidth) {
    const auto pack = load_pack<kWidth>(x + c);
#pragma unroll
    for (int k = 0; k < kWidth; ++k) squares += to_float(pack.v[k]) * to_float(pack.v[k]);
  }
  squares = lanes_sum<kLanes>(squares);
  if (row >= a.rows) return;
  const auto channels = static_cast<float>(a.channels);
  const float scale =
      a.gamma ? sqrtf(channels) / fmaxf(sqrtf(squares), a.eps) : 1.0f / sqrtf(squares / channels + a.eps);
  T* y = static_cast<T*>(a.y) + at;
  for (int c = lane * kWidth; c < a.channels; c += kLanes * kWidth) {
    auto pack = load_pack<kWidth>(x + c);
#pragma unroll
    for (int k = 0; k < kWidth; ++k) {
      float v = to_float(pack.v[k]) * scale;
      if (a.gamma) v *= a.gamma[c + k];
      if (a.activation == Activation::relu) v = v < 0.0f ? 0.0f : v;
      if (a.activation == Activation::silu) v = silu<T>(v);
      pack.v[k] = from_float<T>(v);
    }
    store_pack<kWidth>(y + c, pack);
  }
}

template <typename T, int kWidth, int kLanes>
void launch(const ChannelNormArgs& a, cudaStream_t stream) {
  constexpr int kRows = kThreads / kLanes;
  channel_norm<T, kWidth, kLanes>
      <<<static_cast<unsigned>((a.rows + kRows - 1) / kRows), kThreads, 0, stream>>>(a);
  check_launch("channel_norm");
}

}  // namespace
}  // namespace cuda

void CudaOps::do_channel_norm(const Tensor& x, const ChannelNorm& norm, Tensor& y) {
  if (x.numel() == 0) return;
  const std::int64_t channels = x.dim(3), rows = x.numel() / channels;
  require(rows <= (std::int64_t{1} << 31) && channels < (std::int64_t{1} << 30),
          "channel_norm: {} is too large for the GPU's kernel", to_string(x.shape()));
  const cuda::ChannelNormArgs args{
      x.raw(),        y.raw(), norm.kind == ChannelNorm::Kind::l2 ? norm.gamma.data<float>() : nullptr,
      norm.eps,       rows,    static_cast<int>(channels),
      norm.activation};
  cuda::with_element(x.dtype(), [&]<typename T>(T) {
    const bool vectors = reinterpret_cast<std::uintptr_t>(x.raw()) % 16 == 0 &&
                         channels % static_cast<std::int64_t>(16 / sizeof(T)) == 0;
    cuda::with_width<T>(vectors, [&](auto width) {
      if (channels <= 8 * width())
        cuda::launch<T, width(), 8>(args, stream());
      else if (channels <= 16 * width())
        cuda::launch<T, width(), 16>(args, stream());
      else
        cuda::launch<T, width(), 32>(args, stream());
    });
  });
}

}  // namespace magi
