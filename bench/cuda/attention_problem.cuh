// SPDX-License-Identifier: Apache-2.0
// Random attention problems for attention_bench.cu, and their answers in fp64.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <vector>

#include "ops/cuda/attention_launch.cuh"
#include "random_arrays.cuh"

#define CHECK(call)                                                                    \
  do {                                                                                 \
    cudaError_t e = (call);                                                            \
    if (e != cudaSuccess) {                                                            \
      std::printf("%s:%d %s: %s\n", __FILE__, __LINE__, #call, cudaGetErrorString(e)); \
      std::fflush(stdout);                                                             \
      std::_Exit(1);                                                                   \
    }                                                                                  \
  } while (0)

namespace bench {

using magi::RowRange;
using magi::WindowOptions;
using magi::cuda::AttentionArgs;
using bf16 = __nv_bfloat16;

/// Normal values in bf16 or f32; the first `scaled` columns of each row (the q heads) times `factor`.
__global__ static void fill(void* x, bool is_bf16, std::int64_t rows, std::int64_t width, std::int64_t scaled,
                            float factor, std::uint64_t seed) {
  const std::int64_t n = rows * width, step = std::int64_t{gridDim.x} * blockDim.x;
  for (std::int64_t i = std::int64_t{blockIdx.x} * blockDim.x + threadIdx.x; i < n; i += step) {
    const float value = normal(seed, i) * (i % width < scaled ? factor : 1.f);
    if (is_bf16) {
      static_cast<bf16*>(x)[i] = __float2bfloat16(value);
    } else {
      static_cast<float*>(x)[i] = value;
    }
  }
}

__device__ inline double at(const void* x, bool is_bf16, std::int64_t i) {
  return is_bf16 ? __bfloat162float(static_cast<const bf16*>(x)[i]) : static_cast<const float*>(x)[i];
}

/// An output row of one head, and its sample.
struct Probe {
  std::int64_t row, first, end;
  int head;
};

/// Blocks of the video rows, and how far a query sees; null: everything.
struct Cells {
  const short4* blocks = nullptr;
  std::int64_t video = 0;
  int radius[3] = {};
  bool causal = false;
  __device__ bool sees(std::int64_t query, std::int64_t key) const {
    if (causal && key > query) return false;
    if (blocks == nullptr || query >= video || key >= video) return true;
    const short4 a = blocks[query], b = blocks[key];
    return abs(a.x - b.x) <= radius[0] && abs(a.y - b.y) <= radius[1] && abs(a.z - b.z) <= radius[2];
  }
};

/// One block of 256 threads a probe: the row's outputs in fp64, two passes over the keys.
__global__ static void reference(AttentionArgs a, Cells cells, const Probe* probes, double* out) {
  const Probe p = probes[blockIdx.x];
  __shared__ double q[512], part[256], acc[512];
  const int t = threadIdx.x, kv = p.head * a.kv_heads / a.heads, dim = static_cast<int>(a.head_dim);
  for (int d = t; d < dim; d += 256) {
    q[d] = at(a.q, a.is_bf16, p.row * a.q_pitch + p.head * dim + d);
    acc[d] = 0;
  }
  __syncthreads();
  const auto score = [&](std::int64_t key) {
    if (!cells.sees(p.row, key)) return -1e300;
    double s = 0;
    const std::int64_t k = key * a.kv_pitch + kv * dim;
    for (int d = 0; d < dim; ++d) s += q[d] * at(a.kv, a.is_bf16, k + d);
    return s * a.scale;
  };
  double top = -1e300;
  for (std::int64_t key = p.first + t; key < p.end; key += 256) top = fmax(top, score(key));
  part[t] = top;
  __syncthreads();
  for (int i = 0; i < 256; ++i) top = fmax(top, part[i]);
  __syncthreads();
  double sum = 0;
  for (std::int64_t base = p.first; base < p.end; base += 256) {
    const std::int64_t key = base + t;
    part[t] = key < p.end && cells.sees(p.row, key) ? exp(score(key) - top) : 0;
    sum += part[t];
    __syncthreads();
    for (int d = t; d < dim; d += 256) {
      for (int i = 0; i < 256 && base + i < p.end; ++i) {
        acc[d] += part[i] * at(a.kv, a.is_bf16, (base + i) * a.kv_pitch + (a.kv_heads + kv) * dim + d);
      }
    }
    __syncthreads();
  }
  part[t] = sum;
  __syncthreads();
  sum = 0;
  for (int i = 0; i < 256; ++i) sum += part[i];
  double rest = 0;
  for (int i = 0; i < a.n_sink; ++i) rest += exp(a.sinks[i * a.heads + p.head] - top);
  for (int d = t; d < dim; d += 256) {
    double factor = 1 / (sum + rest);
    if (a.gate != nullptr) {
      const std::int64_t column = a.gate_channels ? p.head * dim + d : p.head;
      factor /= 1 + exp(-at(a.gate, a.gate_is_bf16, p.row * a.gate_pitch + column));
    }
    out[std::int64_t{blockIdx.x} * dim + d] = acc[d] * factor;
  }
}

enum class Gate : std::uint8_t { none, f32, bf16, channels };

struct Setup {
  std::int64_t rows = 0;
  std::vector<RowRange> samples;
  int heads = 1;
  int kv_heads = 1;
  int head_dim = 128;
  int n_sink = 0;
  Gate gate = Gate::none;
  float q_factor = 1;  ///< of the q heads: how sharp the softmax is
  bool is_bf16 = true;
  bool causal = false;
  WindowOptions window;  ///< of a grid of zero cells: none
};

/// A problem on the device. Rows outside every sample are NaN.
struct Problem {
  Setup setup;
  AttentionArgs args;
  Cells cells;
  std::int64_t out_bytes = 0;
  double pairs = 0;       ///< of a query and a key that it sees
  double rest_pairs = 0;  ///< of them, of audio and text queries
  std::vector<void*> owned;

  Problem(Setup setup_, std::uint64_t seed) : setup(std::move(setup_)) {
    const Setup& s = setup;
    const std::int64_t width = std::int64_t{s.heads + 2 * s.kv_heads} * s.head_dim,
                       element = s.is_bf16 ? 2 : 4;
    const std::int64_t gate_width = s.gate == Gate::channels ? s.heads * s.head_dim : s.heads;
    args.is_bf16 = s.is_bf16;
    args.heads = s.heads;
    args.kv_heads = s.kv_heads;
    args.head_dim = s.head_dim;
    args.scale = 1.f / std::sqrt(static_cast<float>(s.head_dim));
    args.causal = cells.causal = s.causal;
    args.samples = s.samples;
    args.q_pitch = args.kv_pitch = width;
    args.out_pitch = std::int64_t{s.heads} * s.head_dim;
    out_bytes = s.rows * args.out_pitch * element;
    args.out = allocate(out_bytes);
    auto* qkv = static_cast<char*>(allocate(s.rows * width * element));
    args.q = qkv;
    args.kv = qkv + s.heads * s.head_dim * element;
    fill<<<1024, 256>>>(qkv, s.is_bf16, s.rows, width, s.heads * s.head_dim, s.q_factor, seed);
    if (s.n_sink > 0) {
      void* sinks = allocate(s.n_sink * s.heads * 4);
      fill<<<1, 256>>>(sinks, false, s.n_sink, s.heads, 0, 1.f, seed + 1);
      args.sinks = static_cast<const float*>(sinks);
      args.n_sink = s.n_sink;
    }
    if (s.gate != Gate::none) {
      void* gate = allocate(s.rows * gate_width * 4);
      args.gate = gate;
      args.gate_pitch = gate_width;
      args.gate_is_bf16 = s.gate == Gate::bf16;
      args.gate_channels = s.gate == Gate::channels;
      fill<<<1024, 256>>>(gate, args.gate_is_bf16, s.rows, gate_width, 0, 1.f, seed + 2);
    }
    CHECK(cudaDeviceSynchronize());
    std::int64_t next = 0;
    const auto poison = [&](std::int64_t to) {
      CHECK(cudaMemset(qkv + next * width * element, 0xff, (to - next) * width * element));
    };
    for (const RowRange& sample : s.samples) {
      poison(sample.first);
      next = sample.end;
      pairs += static_cast<double>(sample.size()) * sample.size() * (s.causal ? 0.5 : 1.0);
    }
    poison(s.rows);
    if (s.window.grid[0] > 0) make_cells();
    CHECK(cudaDeviceSynchronize());
  }
  Problem(const Problem&) = delete;
  ~Problem() {
    for (void* p : owned) cudaFree(p);
  }
  double flops() const { return 4.0 * pairs * static_cast<double>(args.heads * args.head_dim); }

 private:
  void* allocate(std::int64_t bytes) {
    void* p = nullptr;
    CHECK(cudaMalloc(&p, std::max<std::int64_t>(bytes, 1)));
    owned.push_back(p);
    return p;
  }

  /// The block of every video row, by enumeration, and the pairs.
  void make_cells() {
    const WindowOptions& w = setup.window;
    std::int64_t blocks[3];
    for (int i = 0; i < 3; ++i) blocks[i] = (w.grid[i] + w.block[i] - 1) / w.block[i];
    std::vector<short4> of_row;
    for (std::int64_t i = 0; i < blocks[0] * blocks[1] * blocks[2]; ++i) {
      const std::int64_t at[3] = {i / blocks[2] / blocks[1], i / blocks[2] % blocks[1], i % blocks[2]};
      std::int64_t inside = 1;
      for (int a = 0; a < 3; ++a) inside *= std::min(w.block[a], w.grid[a] - at[a] * w.block[a]);
      of_row.insert(of_row.end(), inside, make_short4(at[0], at[1], at[2], 0));
    }
    void* device = allocate(of_row.size() * sizeof(short4));
    CHECK(cudaMemcpy(device, of_row.data(), of_row.size() * sizeof(short4), cudaMemcpyHostToDevice));
    cells.blocks = static_cast<const short4*>(device);
    cells.video = of_row.size();
    pairs = 1;  // of the axes' own pairs, by product
    for (int a = 0; a < 3; ++a) {
      cells.radius[a] = static_cast<int>(w.radius[a]);
      std::int64_t axis = 0;
      for (std::int64_t b = 0; b < blocks[a]; ++b) {
        const std::int64_t from = std::max<std::int64_t>(b - w.radius[a], 0) * w.block[a];
        const std::int64_t to = std::min((b + w.radius[a] + 1) * w.block[a], w.grid[a]);
        axis += (to - from) * std::min(w.block[a], w.grid[a] - b * w.block[a]);
      }
      pairs *= static_cast<double>(axis);
    }
    const double rest = static_cast<double>(setup.rows - cells.video);
    rest_pairs = rest * static_cast<double>(setup.rows);
    pairs += cells.video * rest + rest_pairs;
  }
};

}  // namespace bench
