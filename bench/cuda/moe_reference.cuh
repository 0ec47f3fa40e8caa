// SPDX-License-Identifier: Apache-2.0
// Plain f64 references for moe_bench.
#pragma once

#include <cstdint>

#include "ops/cuda/moe.h"
#include "ops/cuda/nvfp4.cuh"
#include "random_arrays.cuh"

namespace {

using magi::cuda::MoeShape;
using magi::cuda::SortedRouting;

constexpr int kMaxExperts = 256, kMaxHidden = 1280, kMaxTopK = 16;  // of the references
constexpr float kScale = 4.9f;
constexpr int kSamples = 64;

// ---------------------------------------------------------------- inputs

/// NVFP4 experts whose numbers are distributed like quantised Gaussian ones; `exponents`: the matrices'
/// scales.
__global__ void fill_nvfp4(unsigned char* to, std::int64_t experts, magi::Nvfp4Layout layout,
                           std::uint64_t seed, int3 exponents) {
  // E2M1 codes of the middles of 256 equal parts of N(0, 3): how many parts each magnitude gets.
  constexpr int kUpTo[8] = {17, 51, 83, 110, 147, 192, 227, 256};
  const std::int64_t bytes = layout.expert_bytes(), tiles = layout.matrix_scale_at(magi::ExpertMatrix::gate);
  for (std::int64_t i = static_cast<std::int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
       i < experts * bytes / 4; i += static_cast<std::int64_t>(gridDim.x) * blockDim.x) {
    const std::int64_t at = i * 4 % bytes;
    const std::uint64_t random = mix(seed * 0x2545f4914f6cdd1dull + i), more = mix(random);
    const auto value = [&](int n) {  // in a half of a pair
      const auto bits = static_cast<unsigned>((n < 4 ? random : more) >> (n % 4 * 16));
      unsigned magnitude = 0;
      while (static_cast<int>(bits & 255) >= kUpTo[magnitude]) ++magnitude;
      return magnitude << 6 | (magnitude > 0 ? bits >> 8 & 1 : 0) << 15;
    };
    std::uint32_t word = 0;
    if (at >= tiles) {
      const int matrix = static_cast<int>(at - tiles) / 4;
      const int exponent = matrix == 0 ? exponents.x : matrix == 1 ? exponents.y : exponents.z;
      if (matrix < 3) word = static_cast<std::uint32_t>(127 + exponent) << 23;
    } else if (at % magi::Nvfp4Layout::kTileBytes < magi::Nvfp4Layout::kTileValueBytes) {
      for (int p = 0; p < 4; ++p) word |= magi::Nvfp4Layout::place(value(2 * p) | value(2 * p + 1) << 16, p);
    } else {
      word = 0x80808080u + (random >> 32 & 0x07070707u);  // 128 … 240
    }
    reinterpret_cast<std::uint32_t*>(to)[i] = word;
  }
}

/// One matrix of each expert as the checkpoint has it, [depth, columns].
template <typename T>
__global__ void dequantise_nvfp4(const unsigned char* from, std::int64_t experts, magi::Nvfp4Layout layout,
                                 magi::ExpertMatrix m, T* to) {
  const std::int64_t columns = layout.columns(m), size = layout.depth(m) * columns;
  for (std::int64_t i = static_cast<std::int64_t>(blockIdx.x) * blockDim.x + threadIdx.x; i < experts * size;
       i += static_cast<std::int64_t>(gridDim.x) * blockDim.x)
    to[i] = static_cast<T>(magi::cuda::nvfp4_weight(from + i / size * layout.expert_bytes(), layout, m,
                                                    static_cast<int>(i % columns),
                                                    static_cast<int>(i % size / columns)));
}

// ---------------------------------------------------------------- references

struct RouteErrors {
  int mismatches, compared;
  float score, weight;
};
/// One block of `experts` threads per (sample, head): the selection in f64 against the kernel's.
template <typename T>
__global__ void check_route(MoeShape s, const T* z, const float* gate, const float* bias, const int* index,
                            const float* weight, RouteErrors* errors) {
  __shared__ double score[kMaxExperts], sigma[kMaxExperts];
  __shared__ int chosen[kMaxTopK + 1];
  const std::int64_t rows = s.rows;
  const std::int64_t row = rows <= kSamples ? blockIdx.x : (blockIdx.x * rows) / gridDim.x + blockIdx.x % 7;
  const int head = blockIdx.y, e = threadIdx.x;
  if (row >= rows) return;
  double sum = 0;
  for (int k = 0; k < s.dim; ++k)
    sum += double(float(z[(row * s.heads + head) * s.dim + k])) * gate[(head * s.experts + e) * s.dim + k];
  sigma[e] = 1 / (1 + exp(-sum));
  score[e] = sigma[e] + bias[head * s.experts + e];
  __syncthreads();
  if (e > 0) return;
  double total = 0, last = 0, next = -1e30;
  for (int k = 0; k <= s.top_k && k < s.experts; ++k) {
    int best = -1;
    for (int i = 0; i < s.experts; ++i) {
      bool used = false;
      for (int c = 0; c < k; ++c) used |= chosen[c] == i;
      if (!used && (best < 0 || score[i] > score[best])) best = i;
    }
    chosen[k] = best;
    if (k < s.top_k) total += sigma[best];
    (k < s.top_k ? last : next) = score[best];
  }
  if (last - next <= 1e-6) return;
  atomicAdd(&errors->compared, 1);
  const std::int64_t at = (row * s.heads + head) * s.top_k;
  for (int k = 0; k < s.top_k; ++k) {
    bool found = false;
    for (int c = 0; c < s.top_k; ++c) {
      if (index[at + c] != chosen[k]) continue;
      found = true;
      const double right = sigma[chosen[k]] / total * kScale;
      atomicMax(reinterpret_cast<int*>(&errors->weight), __float_as_int(float(fabs(weight[at + c] - right))));
    }
    if (!found) atomicAdd(&errors->mismatches, 1);
    if (k > 0 && (index[at + k] < 0 || score[index[at + k - 1]] < score[index[at + k]] - 1e-6))
      atomicAdd(&errors->mismatches, 1);
  }
}

__device__ double swiglu7(double a, double b) {
  a = fmin(a, 7.0);
  b = fmax(fmin(b, 7.0), -7.0);
  return a / (1 + exp(-1.702 * a)) * (b + 1);
}
__device__ double rounded(double x) {
  return __bfloat162float(__float2bfloat16(float(x)));
}

struct ExpertErrors {
  double norm, kernel, plain;  ///< sums of squares
};
/// One block of `dim` threads per (sample, head): y in f64 and in plain bf16 arithmetic (every tensor
/// rounded), and the kernel's distance and plain bf16's from f64.
template <typename T>
__global__ void check_experts(MoeShape s, const T* z, const T* gate, const T* up, const T* down,
                              const int* index, const float* weight, const T* y, ExpertErrors* errors) {
  __shared__ double exact[kMaxHidden], plain[kMaxHidden];
  const std::int64_t rows = s.rows;
  const std::int64_t row = rows <= kSamples ? blockIdx.x : (blockIdx.x * rows) / gridDim.x + blockIdx.x % 7;
  const int head = blockIdx.y, d = threadIdx.x;
  if (row >= rows) return;
  double y_exact = 0, y_plain = 0;
  for (int c = 0; c < s.top_k; ++c) {
    const std::int64_t at = (row * s.heads + head) * s.top_k + c;
    const std::int64_t base = (static_cast<std::int64_t>(head) * s.experts + index[at]) * s.dim * s.hidden;
    __syncthreads();
    for (int j = d; j < s.hidden; j += s.dim) {
      double g = 0, u = 0;
      for (int k = 0; k < s.dim; ++k) {
        const double x = float(z[(row * s.heads + head) * s.dim + k]);
        g += x * double(float(gate[base + k * s.hidden + j]));
        u += x * double(float(up[base + k * s.hidden + j]));
      }
      exact[j] = swiglu7(g, u);
      plain[j] = rounded(swiglu7(rounded(g), rounded(u)));
    }
    __syncthreads();
    double q = 0, p = 0;
    for (int j = 0; j < s.hidden; ++j) {
      const double w = float(down[base + j * s.dim + d]);
      q += exact[j] * w;
      p += plain[j] * w;
    }
    y_exact += weight[at] * q;
    y_plain += weight[at] * rounded(p);
  }
  const double e = double(float(y[(row * s.heads + head) * s.dim + d])) - y_exact;
  atomicAdd(&errors->norm, y_exact * y_exact);
  atomicAdd(&errors->kernel, e == e ? e * e : 1e30);
  atomicAdd(&errors->plain, (rounded(y_plain) - y_exact) * (rounded(y_plain) - y_exact));
}

/// Within each expert's range: slots of that expert, strictly ascending (hence each once).
__global__ void check_order(MoeShape shape, SortedRouting s, const int* index, int* bad) {
  const std::int64_t slots = shape.rows * shape.top_k;
  const int head = blockIdx.y, e = blockIdx.x;
  const int* starts = s.expert_start + head * (shape.experts + 1);
  for (std::int64_t p = starts[e] + threadIdx.x; p < starts[e + 1]; p += blockDim.x) {
    const int slot = s.order[head * slots + p];
    bool good = slot >= 0 && slot < slots && (p == starts[e] || s.order[head * slots + p - 1] < slot);
    good = good && index[(static_cast<std::int64_t>(slot / shape.top_k) * shape.heads + head) * shape.top_k +
                         slot % shape.top_k] == e;
    if (!good) atomicAdd(bad, 1);
  }
}

}  // namespace
