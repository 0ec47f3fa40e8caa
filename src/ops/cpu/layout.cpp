// SPDX-License-Identifier: Apache-2.0
// Operations that only move elements of [T,H,W,C] activations.
#include <cstring>

#include "ops/cpu/cpu_ops.h"
#include "ops/cpu/rows.h"

namespace magi {
namespace {

std::size_t bytes_from(const Tensor& x, std::size_t axis) {
  std::size_t bytes = size_of(x.dtype());
  for (; axis < x.shape().size(); ++axis) bytes *= static_cast<std::size_t>(x.shape()[axis]);
  return bytes;
}

const char* bytes_of(const Tensor& x) {
  return static_cast<const char*>(x.raw());
}
char* bytes_of(Tensor& x) {
  return static_cast<char*>(x.raw());
}

/// Moves pixels between patches [T,H,W,(c·p+r)·p+q] and the grid [T,p·H,p·W,c], where q is the row in a patch
/// and r the column. move(patches' element, grid's element) copies one of them to the other.
template <typename Move>
void for_patches(const Shape& grid, std::int64_t p, const Move& move) {
  const std::int64_t height = grid[1], width = grid[2], channels = grid[3];
  parallel_for(grid[0] * height, [&](std::int64_t line) {
    const std::int64_t t = line / height, y = line % height, q = y % p;
    for (std::int64_t x = 0; x < width; ++x) {
      const std::int64_t r = x % p;
      const std::int64_t patch =
          ((t * (height / p) + y / p) * (width / p) + x / p) * channels * p * p + r * p + q;
      const std::int64_t cell = (line * width + x) * channels;
      for (std::int64_t c = 0; c < channels; ++c) move(patch + c * p * p, cell + c);
    }
  });
}

}  // namespace

void CpuOps::do_replicate_time(const Tensor& x, std::int64_t front, std::int64_t back, Tensor& y) {
  const std::size_t frame = bytes_from(x, 1);
  if (frame == 0) return;
  const std::int64_t frames = x.dim(0);
  const char* from = bytes_of(x);
  char* to = bytes_of(y);
  parallel_for(front + frames + back, [&](std::int64_t t) {
    const std::int64_t source = std::clamp<std::int64_t>(t - front, 0, frames - 1);
    std::memcpy(to + static_cast<std::size_t>(t) * frame, from + static_cast<std::size_t>(source) * frame,
                frame);
  });
}

void CpuOps::do_upsample_nearest(const Tensor& x, Tensor& y) {
  const std::size_t pixel = bytes_from(x, 3), line = bytes_from(x, 2);
  const std::int64_t width = x.dim(2);
  const char* from = bytes_of(x);
  char* to = bytes_of(y);
  parallel_for(x.dim(0) * x.dim(1), [&](std::int64_t row) {
    const char* in = from + static_cast<std::size_t>(row) * line;
    char* out = to + static_cast<std::size_t>(row) * 4 * line;
    for (std::int64_t i = 0; i < 2 * width; ++i)
      std::memcpy(out + static_cast<std::size_t>(i) * pixel, in + static_cast<std::size_t>(i / 2) * pixel,
                  pixel);
    std::memcpy(out + 2 * line, out, 2 * line);
  });
}

void CpuOps::do_interleave_time(const Tensor& x, Tensor& y) {
  const std::int64_t cells = x.dim(1) * x.dim(2);
  const std::size_t half = bytes_from(y, 3);
  const char* from = bytes_of(x);
  char* to = bytes_of(y);
  parallel_for(x.dim(0) * cells, [&](std::int64_t cell) {
    const std::int64_t t = cell / cells, rest = cell % cells;
    const char* in = from + static_cast<std::size_t>(cell) * 2 * half;
    for (std::int64_t part = 0; part < 2; ++part)
      std::memcpy(to + static_cast<std::size_t>((2 * t + part) * cells + rest) * half,
                  in + static_cast<std::size_t>(part) * half, half);
  });
}

void CpuOps::do_unpatchify(const Tensor& x, std::int64_t patch, Tensor& y) {
  with_type(x.dtype(), [&]<typename T>(T) {
    const T* from = x.data<T>();
    T* to = y.data<T>();
    for_patches(y.shape(), patch, [&](std::int64_t i, std::int64_t cell) { to[cell] = from[i]; });
  });
}

void CpuOps::do_patchify(const Tensor& x, std::int64_t patch, Tensor& y) {
  with_type(x.dtype(), [&]<typename T>(T) {
    const T* from = x.data<T>();
    T* to = y.data<T>();
    for_patches(x.shape(), patch, [&](std::int64_t i, std::int64_t cell) { to[i] = from[cell]; });
  });
}

}  // namespace magi
