// SPDX-License-Identifier: Apache-2.0
// RMS norm of the q and k heads, then the rotary embedding of their first dims (model.md sections 3 and 4).
// In f32, with one rounding at the end.
#include "ops/cpu/cpu_ops.h"
#include "ops/cpu/norm.h"
#include "ops/cpu/rows.h"

namespace magi {
namespace {

struct Rotation {
  const float* sin;
  const float* cos;
  std::int64_t half;
};

/// `scratch` holds a head in f32.
template <typename T>
MAGI2_SIMD void norm_and_rotate(T* x, const float* w, float eps, std::int64_t d, const Rotation& rope,
                                float* scratch) {
  normalise(x, w, eps, d, scratch);
  const float* second = scratch + rope.half;
  for_lanes(rope.half, [&](std::int64_t i, auto n) MAGI2_INLINE_LAMBDA {
    const Floats a = load(scratch + i, n), b = load(second + i, n);
    const Floats s = load(rope.sin + i, n), c = load(rope.cos + i, n);
    store(x + i, a * c - b * s, n);
    store(x + rope.half + i, b * c + a * s, n);
  });
  const std::int64_t rotated = 2 * rope.half;
  for_lanes(d - rotated, [&](std::int64_t i, auto n) MAGI2_INLINE_LAMBDA {
    store(x + rotated + i, load(scratch + rotated + i, n), n);
  });
}

}  // namespace

void CpuOps::do_qk_norm_rope(Tensor& qkv, std::int64_t heads, std::int64_t kv_heads, const NormWeight& q_norm,
                             const NormWeight& k_norm, const Tensor& rope, const Segments& segments,
                             std::span<const HeadPart> parts) {
  const std::int64_t rows = qkv.dim(0), d = qkv.dim(1) / (heads + 2 * kv_heads), half = rope.dim(1) / 2;
  const auto q_groups = row_groups(segments, q_norm.groups, rows);
  const auto k_groups = row_groups(segments, k_norm.groups, rows);
  with_type(qkv.dtype(), [&]<typename T>(T) {
    T* data = qkv.data<T>();
    const float *q_weight = q_norm.weight.data<float>(), *k_weight = k_norm.weight.data<float>();
    const float* angles = rope.data<float>();
    parallel_for(rows, [&](std::int64_t row) {
      thread_local std::vector<float> scratch;
      scratch.resize(static_cast<std::size_t>(d));
      const Rotation rotation{angles + row * 2 * half, angles + row * 2 * half + half, half};
      T* x = data + row * qkv.pitch();
      for (std::int64_t h = 0; h < heads; ++h)
        norm_and_rotate(x + h * d, q_weight + q_groups[row] * d, q_norm.eps, d, rotation, scratch.data());
      for (std::int64_t h = heads; h < heads + kv_heads; ++h)
        norm_and_rotate(x + h * d, k_weight + k_groups[row] * d, k_norm.eps, d, rotation, scratch.data());
    });
  });
  copy_heads(qkv, heads, kv_heads, parts);
}

}  // namespace magi
