// SPDX-License-Identifier: Apache-2.0
// Device arrays of random values, and digests of arrays.
#pragma once

#include <cuda_bf16.h>

#include <algorithm>
#include <cstdint>

#include "ops/cuda/launch.cuh"

namespace {

using magi::cuda::check_cuda;
using Bf16 = __nv_bfloat16;

__device__ inline std::uint64_t mix(std::uint64_t x) {
  x += 0x9e3779b97f4a7c15ull;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ull;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebull;
  return x ^ (x >> 31);
}
__device__ inline float normal(std::uint64_t seed, std::uint64_t i) {
  const std::uint64_t r = mix(seed * 0x2545f4914f6cdd1dull + i);
  const float u = (static_cast<std::uint32_t>(r >> 40) + 1) * (1.0f / 16777217.0f);
  const float v = static_cast<std::uint32_t>(r & 0xffffff) * (1.0f / 16777216.0f);
  return sqrtf(-2.0f * __logf(u)) * __cosf(6.2831853f * v);
}
template <typename T>
__global__ void fill_normal(T* to, std::int64_t count, std::uint64_t seed, float sigma) {
  for (std::int64_t i = static_cast<std::int64_t>(blockIdx.x) * blockDim.x + threadIdx.x; i < count;
       i += static_cast<std::int64_t>(gridDim.x) * blockDim.x)
    to[i] = static_cast<T>(sigma * normal(seed, i));
}
template <typename T>
T* random_array(std::int64_t count, std::uint64_t seed, float sigma) {
  T* p;
  check_cuda(cudaMalloc(&p, count * sizeof(T)), "allocate");
  fill_normal<<<2048, 256>>>(p, count, seed, sigma);
  return p;
}
template <typename T>
T* array(std::int64_t count) {
  T* p;
  check_cuda(cudaMalloc(&p, std::max<std::int64_t>(count, 1) * sizeof(T)), "allocate");
  return p;
}

/// Sum of hashes of (position, word); NaN bf16s counted.
template <typename Word>
__global__ void digest_kernel(const Word* words, std::int64_t count, unsigned long long* sum, int* nans) {
  unsigned long long s = 0;
  int bad = 0;
  for (std::int64_t i = static_cast<std::int64_t>(blockIdx.x) * blockDim.x + threadIdx.x; i < count;
       i += static_cast<std::int64_t>(gridDim.x) * blockDim.x) {
    s += mix(words[i] + (static_cast<std::uint64_t>(i) << 32));
    bad += ((words[i] & 0x7fff) > 0x7f80) + ((words[i] >> 16 & 0x7fff) > 0x7f80);
  }
  atomicAdd(sum, s);
  if (bad) atomicAdd(nans, bad);
}
struct Digest {
  unsigned long long sum = 0;
  int nans = 0;
};
inline Digest digest(const void* p, std::int64_t bytes) {
  static auto* sum = array<unsigned long long>(1);
  static auto* nans = array<int>(1);
  cudaMemset(sum, 0, 8);
  cudaMemset(nans, 0, 4);
  digest_kernel<<<1024, 256>>>(static_cast<const std::uint32_t*>(p), bytes / 4, sum, nans);
  Digest d;
  check_cuda(cudaMemcpy(&d.sum, sum, 8, cudaMemcpyDeviceToHost), "digest");
  check_cuda(cudaMemcpy(&d.nans, nans, 4, cudaMemcpyDeviceToHost), "digest");
  return d;
}

}  // namespace
