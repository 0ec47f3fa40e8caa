// SPDX-License-Identifier: Apache-2.0
// Decoder operations that move elements of [T,H,W,C] activations or treat each one alone.
#include "ops/cuda/cuda_ops.h"
#include "ops/cuda/elements.cuh"

namespace magi {
namespace cuda {
namespace {

constexpr int kThreads = 256;

std::size_t bytes_from(const Tensor& x, std::size_t axis) {
  std::size_t bytes = size_of(x.dtype());
  for (; axis < x.shape().size(); ++axis) bytes *= static_cast<std::size_t>(x.shape()[axis]);
  return bytes;
}

/// f(U{}, units): the widest unit that a pixel of `bytes` consists of, and how many.
template <typename F>
void with_unit(std::size_t bytes, const F& f) {
  if (bytes % 16 == 0)
    f(uint4{}, static_cast<int>(bytes / 16));
  else if (bytes % 4 == 0)
    f(std::uint32_t{}, static_cast<int>(bytes / 4));
  else
    f(std::uint16_t{}, static_cast<int>(bytes / 2));
}

/// A block a line of the result; `units` a pixel.
template <typename U>
__global__ void upsample(const U* x, U* y, int width, int units) {
  const std::int64_t line = blockIdx.x, height = gridDim.y;  // of the input
  const int count = 2 * width * units;
  const U* from = x + (line * height + blockIdx.y) * width * units;
  U* to = y + (line * height + blockIdx.y) * 2 * count;
  for (int i = threadIdx.x; i < count; i += blockDim.x) {
    const U v = from[i / units / 2 * units + i % units];
    to[i] = v;
    to[count + i] = v;
  }
}

/// `half` units in a pixel of the result, `cells` pixels in a frame.
template <typename U>
__global__ void interleave(const U* x, U* y, std::int64_t all, std::int64_t cells, int half) {
  const std::int64_t step = static_cast<std::int64_t>(gridDim.x) * blockDim.x;
  for (std::int64_t i = static_cast<std::int64_t>(blockIdx.x) * blockDim.x + threadIdx.x; i < all;
       i += step) {
    const std::int64_t pixel = i / (2 * half), unit = i - pixel * 2 * half;
    const std::int64_t t = pixel / cells, cell = pixel - t * cells;
    const std::int64_t part = unit / half;
    y[((2 * t + part) * cells + cell) * half + unit - part * half] = x[i];
  }
}

/// Pixels between patches [T,H,W,(c·p+r)·p+q] and the grid [T,p·H,p·W,c]; a block a line of the grid (its
/// lines are blockIdx.x, `height` of them a frame).
template <typename T, bool kToGrid>
__global__ void move_patches(const T* from, T* to, int height, int width, int channels, int p) {
  const std::int64_t line = blockIdx.x, t = line / height;
  const int y = static_cast<int>(line - t * height), q = y % p;
  const std::int64_t patches = (t * (height / p) + y / p) * (width / p) * channels * p * p;
  for (int i = threadIdx.x; i < width * channels; i += blockDim.x) {
    const int x = i / channels, c = i - x * channels, r = x % p;
    const std::int64_t patch = patches + ((x / p) * channels + c) * p * p + r * p + q;
    const std::int64_t cell = line * width * channels + i;
    if constexpr (kToGrid)
      to[cell] = from[patch];
    else
      to[patch] = from[cell];
  }
}

template <bool kToGrid>
void launch_patches(const Tensor& x, const Shape& grid, std::int64_t patch, Tensor& y, cudaStream_t stream) {
  if (x.numel() == 0) return;
  require(grid[2] * grid[3] < (std::int64_t{1} << 31) && grid[0] * grid[1] < (std::int64_t{1} << 31),
          "patches: the grid is too large for the GPU's kernel");
  with_element(x.dtype(), [&]<typename T>(T) {
    move_patches<T, kToGrid><<<static_cast<unsigned>(grid[0] * grid[1]), kThreads, 0, stream>>>(
        elements<T>(x), elements<T>(y), static_cast<int>(grid[1]), static_cast<int>(grid[2]),
        static_cast<int>(grid[3]), static_cast<int>(patch));
  });
  check_launch("patches");
}

/// y[i] = f(x[i], i), kWidth elements at a time.
template <int kWidth, typename X, typename Y, typename F>
__global__ void map_elements(const X* x, Y* y, std::int64_t count, F f) {
  const std::int64_t step = static_cast<std::int64_t>(gridDim.x) * blockDim.x * kWidth;
  for (std::int64_t i = (static_cast<std::int64_t>(blockIdx.x) * blockDim.x + threadIdx.x) * kWidth;
       i < count; i += step) {
    const Pack<X, kWidth> in = load_pack<kWidth>(x + i);
    Pack<Y, kWidth> out;
#pragma unroll
    for (int k = 0; k < kWidth; ++k) out.v[k] = from_float<Y>(f(to_float(in.v[k]), i + k));
    store_pack<kWidth>(y + i, out);
  }
}

template <typename Y, typename F>
void launch_map(const Tensor& x, Tensor& y, bool vectors, const F& f, cudaStream_t stream) {
  if (x.numel() == 0) return;
  with_element(x.dtype(), [&]<typename X>(X) {
    using Out = std::conditional_t<std::is_void_v<Y>, X, Y>;
    with_width<X>(vectors, [&](auto width) {
      map_elements<width()><<<blocks_for(x.numel(), kThreads * width()), kThreads, 0, stream>>>(
          elements<X>(x), elements<Out>(y), x.numel(), f);
    });
  });
  check_launch("elements");
}

bool all_wide(const Tensor& x) {
  return reinterpret_cast<std::uintptr_t>(x.raw()) % 16 == 0 &&
         x.numel() % static_cast<std::int64_t>(16 / size_of(x.dtype())) == 0;
}

struct Tanh {
  __device__ float operator()(float v, std::int64_t) const { return tanhf(v); }
};

struct Snake {
  const float *alpha, *beta;
  unsigned channels;
  __device__ float operator()(float v, std::int64_t i) const {
    const unsigned c = static_cast<unsigned>(i % channels);
    const float s = sinf(v * expf(alpha[c]));
    return v + 1.0f / (expf(beta[c]) + 1e-9f) * (s * s);
  }
};

struct Pixels {
  __device__ float operator()(float v, std::int64_t) const {
    v = v * 0.5f + 0.5f;
    v = v > 0.0f ? v : 0.0f;  // NaN too
    v = v < 1.0f ? v : 1.0f;
    return v * 255.0f;
  }
};

}  // namespace
}  // namespace cuda

void CudaOps::do_replicate_time(const Tensor& x, std::int64_t front, std::int64_t back, Tensor& y) {
  const std::size_t frame = cuda::bytes_from(x, 1);
  if (frame == 0) return;
  const std::int64_t frames = x.dim(0);
  const char* from = cuda::elements<char>(x);
  char* to = cuda::elements<char>(y);
  const auto copy = [&](std::int64_t target, std::int64_t source, std::int64_t count) {
    cuda::check_cuda(
        cudaMemcpyAsync(to + static_cast<std::size_t>(target) * frame,
                        from + static_cast<std::size_t>(source) * frame,
                        static_cast<std::size_t>(count) * frame, cudaMemcpyDeviceToDevice, stream()),
        "replicate_time");
  };
  copy(front, 0, frames);
  for (std::int64_t i = 0; i < front; ++i) copy(i, 0, 1);
  for (std::int64_t i = 0; i < back; ++i) copy(front + frames + i, frames - 1, 1);
}

void CudaOps::do_upsample_nearest(const Tensor& x, Tensor& y) {
  if (x.numel() == 0) return;
  require(x.dim(2) * x.dim(3) < (std::int64_t{1} << 29) && x.dim(1) <= 65535,
          "upsample_nearest: {} is too large a picture for the GPU's kernel", to_string(x.shape()));
  const dim3 grid(static_cast<unsigned>(x.dim(0)), static_cast<unsigned>(x.dim(1)));
  cuda::with_unit(cuda::bytes_from(x, 3), [&]<typename U>(U, int units) {
    cuda::upsample<<<grid, cuda::kThreads, 0, stream()>>>(cuda::elements<U>(x), cuda::elements<U>(y),
                                                          static_cast<int>(x.dim(2)), units);
  });
  cuda::check_launch("upsample_nearest");
}

void CudaOps::do_interleave_time(const Tensor& x, Tensor& y) {
  if (x.numel() == 0) return;
  cuda::with_unit(cuda::bytes_from(y, 3), [&]<typename U>(U, int half) {
    const auto all = static_cast<std::int64_t>(x.bytes() / sizeof(U));
    cuda::interleave<<<cuda::blocks_for(all, cuda::kThreads), cuda::kThreads, 0, stream()>>>(
        cuda::elements<U>(x), cuda::elements<U>(y), all, x.dim(1) * x.dim(2), half);
  });
  cuda::check_launch("interleave_time");
}

void CudaOps::do_unpatchify(const Tensor& x, std::int64_t patch, Tensor& y) {
  cuda::launch_patches<true>(x, y.shape(), patch, y, stream());
}

void CudaOps::do_patchify(const Tensor& x, std::int64_t patch, Tensor& y) {
  cuda::launch_patches<false>(x, x.shape(), patch, y, stream());
}

void CudaOps::do_snake(const Tensor& x, const Tensor& alpha, const Tensor& beta, Tensor& y) {
  cuda::launch_map<void>(
      x, y, cuda::all_wide(x),
      cuda::Snake{alpha.data<float>(), beta.data<float>(), static_cast<unsigned>(x.dim(3))}, stream());
}

void CudaOps::do_to_pixels(const Tensor& x, Tensor& y) {
  cuda::launch_map<std::uint8_t>(x, y, cuda::all_wide(x), cuda::Pixels{}, stream());
}

void CudaOps::do_tanh(const Tensor& x, Tensor& y) {
  cuda::launch_map<void>(x, y, cuda::all_wide(x), cuda::Tanh{}, stream());
}

}  // namespace magi
