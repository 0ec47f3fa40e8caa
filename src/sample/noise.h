// SPDX-License-Identifier: Apache-2.0
// Gaussian noise equal to PyTorch's randn on a CUDA device of 132 SMs × 2048 threads, on any hardware.
#pragma once

#include <cstdint>

#include "core/tensor.h"

namespace magi {

/// Philox-4x32-10 with cuRAND's Box–Muller transform, laid out by PyTorch's launch grid (pipeline.md section
/// 2). Successive draws continue one stream. The bits depend on seed, order and sizes of the draws alone: not
/// on threads, and not on the processor (basic IEEE operations only, no library functions).
class NoiseGenerator {
 public:
  /// `offset`: where a stream was left, from offset() of another generator; 0 starts it.
  explicit NoiseGenerator(std::uint64_t seed, std::uint64_t offset = 0);

  /// Standard normal values, f32 on the host.
  Tensor randn(Shape shape);

  std::uint64_t seed() const { return seed_; }
  std::uint64_t offset() const { return offset_; }

 private:
  std::uint64_t seed_;
  std::uint64_t offset_;
};

}  // namespace magi
