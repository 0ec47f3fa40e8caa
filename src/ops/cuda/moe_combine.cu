// SPDX-License-Identifier: Apache-2.0
// y = Σ weight·E(z) over a token's choices, in their order; memory traffic and nothing else.
#include <cuda_bf16.h>

#include "ops/cuda/launch.cuh"
#include "ops/cuda/moe.h"

namespace magi::cuda {
namespace {

/// `expanded` and y in units of Piece (16 bytes of bf16, or one element); a thread has one piece of a (token,
/// head).
struct CombineArgs {
  const void* expanded;
  const float* weight;
  void* y;
  std::int64_t y_pitch, rows;
  LaterRows later;
  int pieces, heads, first_head, top_k;
};

struct Bf16Eight {
  using Storage = uint4;
  float sum[8] = {};
  __device__ __forceinline__ void add(float w, const uint4& v) {
    const std::uint32_t words[4] = {v.x, v.y, v.z, v.w};
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      sum[2 * j] = fmaf(w, __uint_as_float(words[j] << 16), sum[2 * j]);
      sum[2 * j + 1] = fmaf(w, __uint_as_float(words[j] & 0xffff0000u), sum[2 * j + 1]);
    }
  }
  __device__ __forceinline__ uint4 result() const {
    uint4 r;
    auto* pairs = reinterpret_cast<__nv_bfloat162*>(&r);
#pragma unroll
    for (int j = 0; j < 4; ++j) pairs[j] = __floats2bfloat162_rn(sum[2 * j], sum[2 * j + 1]);
    return r;
  }
};
template <typename T>
struct One {
  using Storage = T;
  float sum = 0;
  __device__ __forceinline__ void add(float w, const T& v) { sum = fmaf(w, static_cast<float>(v), sum); }
  __device__ __forceinline__ T result() const { return static_cast<T>(sum); }
};

/// kTopK 0: any number of choices.
template <typename Piece, int kTopK>
__global__ __launch_bounds__(256) void combine_kernel(const __grid_constant__ CombineArgs a) {
  using Storage = typename Piece::Storage;
  const std::int64_t i = static_cast<std::int64_t>(blockIdx.x) * 256 + threadIdx.x, n = i / a.pieces;
  const int piece = static_cast<int>(i % a.pieces), head = static_cast<int>(blockIdx.y);
  if (n >= a.rows) return;
  const int top_k = kTopK > 0 ? kTopK : a.top_k;
  const Storage* from =
      static_cast<const Storage*>(a.expanded) + (head * a.rows + n) * top_k * a.pieces + piece;
  const float* w = a.weight + (n * a.heads + a.first_head + head) * top_k;
  Piece sum;
  if constexpr (kTopK > 0) {
    Storage value[kTopK];
#pragma unroll
    for (int k = 0; k < kTopK; ++k) value[k] = __ldcs(from + k * a.pieces);
#pragma unroll
    for (int k = 0; k < kTopK; ++k) sum.add(__ldg(w + k), value[k]);
  } else {
    for (int k = 0; k < top_k; ++k) sum.add(w[k], from[static_cast<std::int64_t>(k) * a.pieces]);
  }
  const std::int64_t column = static_cast<std::int64_t>(a.first_head + head) * a.pieces + piece;
  static_cast<Storage*>(a.later.base_of(n, a.y))[n * a.y_pitch + column] = sum.result();
}

}  // namespace

void combine_experts(const void* expanded, const float* weight, void* y, std::int64_t y_pitch,
                     const LaterRows& later, DType dtype, int first_head, int head_count,
                     const MoeShape& shape, cudaStream_t stream) {
  if (shape.rows == 0) return;
  const bool eights = dtype == DType::bf16 && shape.dim % 8 == 0 && y_pitch % 8 == 0;
  const int unit = eights ? 8 : 1;
  const CombineArgs args{expanded, weight,           y,           y_pitch / unit, shape.rows,
                         later,    shape.dim / unit, shape.heads, first_head,     shape.top_k};
  const dim3 grid(static_cast<unsigned>((shape.rows * args.pieces + 255) / 256),
                  static_cast<unsigned>(head_count));
  if (eights && shape.top_k == 6)
    combine_kernel<Bf16Eight, 6><<<grid, 256, 0, stream>>>(args);
  else if (eights)
    combine_kernel<Bf16Eight, 0><<<grid, 256, 0, stream>>>(args);
  else if (dtype == DType::bf16)
    combine_kernel<One<__nv_bfloat16>, 0><<<grid, 256, 0, stream>>>(args);
  else
    combine_kernel<One<float>, 0><<<grid, 256, 0, stream>>>(args);
  check_launch("combine_experts");
}

}  // namespace magi::cuda
