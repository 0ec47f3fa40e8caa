// SPDX-License-Identifier: Apache-2.0
// Tests that every rank runs: mpirun starts test_ranks several times, and each process runs the same tests.
#pragma once

#include <cstring>
#include <random>

#include "comm/world.h"
#include "support/backend.h"

namespace magi {

/// All ranks of this test program.
World& world();

/// Where this rank computes: the host, or a GPU of its own ($MAGI2_TEST_DEVICE).
inline Device rank_device() {
  return tests_on_cuda() ? Device{Device::Kind::cuda, world().local_rank()} : Device{};
}

/// Scratch memory there, on the host full of NaN.
inline Arena rank_arena(std::size_t bytes = std::size_t{4} << 30) {
  return tests_on_cuda() ? make_cuda_arena(rank_device().index, bytes) : test_arena(bytes);
}

inline bool same_bytes(const Tensor& a, const Tensor& b) {
  return a.shape() == b.shape() && std::memcmp(a.raw(), b.raw(), a.bytes()) == 0;
}

inline Tensor random_normal(unsigned seed, const Shape& shape) {
  std::mt19937 engine(seed);
  std::normal_distribution<float> distribution;
  Tensor t = Tensor::empty(DType::f32, shape);
  for (float& v : t.values<float>()) v = distribution(engine);
  return t;
}

}  // namespace magi
