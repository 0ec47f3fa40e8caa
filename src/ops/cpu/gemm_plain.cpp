// SPDX-License-Identifier: Apache-2.0
// Products in plain C++: where oneDNN is left out, or has no kernel that keeps rows apart.
#include <algorithm>

#include "ops/cpu/gemm.h"
#include "ops/cpu/vector_math.h"

namespace magi {
namespace {

constexpr std::int64_t kStripe = 2 * kLanes;  // columns held in registers
constexpr std::int64_t kRows = 4;             // rows held in registers

/// packed: [n/kStripe][k][kStripe]. Every element is one sum from depth 0 upwards.
MAGI2_SIMD void multiply(const float* a, const float* packed, float* c, std::int64_t rows, std::int64_t k,
                         std::int64_t n) {
  for (std::int64_t column = 0; column < n; column += kStripe) {
    const float* stripe = packed + column * k;
    for (std::int64_t row = 0; row < rows; row += kRows) {
      Floats left[kRows] = {}, right[kRows] = {};
      for (std::int64_t i = 0; i < k; ++i) {
        const Floats b_left = load(stripe + i * kStripe), b_right = load(stripe + i * kStripe + kLanes);
        for (std::int64_t r = 0; r < kRows; ++r) {
          left[r] += a[(row + r) * k + i] * b_left;
          right[r] += a[(row + r) * k + i] * b_right;
        }
      }
      for (std::int64_t r = 0; r < kRows; ++r) {
        store(c + (row + r) * n + column, left[r]);
        store(c + (row + r) * n + column + kLanes, right[r]);
      }
    }
  }
}

class PlainKernel final : public GemmKernel {
 public:
  PlainKernel(std::int64_t k, std::int64_t n) : k_(k), n_(n) {}

  std::size_t packed_bytes() const override { return static_cast<std::size_t>(k_ * n_) * sizeof(float); }

  void pack(const void* b, bool transposed, void* packed) const override {
    const float* from = static_cast<const float*>(b);
    float* to = static_cast<float*>(packed);
    for (std::int64_t column = 0; column < n_; ++column) {
      for (std::int64_t i = 0; i < k_; ++i) {
        to[(column / kStripe * k_ + i) * kStripe + column % kStripe] =
            transposed ? from[column * k_ + i] : from[i * n_ + column];
      }
    }
  }

  std::unique_ptr<Worker> worker() const override {
    struct PlainWorker final : Worker {
      const PlainKernel& kernel;
      explicit PlainWorker(const PlainKernel& kernel) : kernel(kernel) {}
      void run(const void* a, const void* packed, float* c, std::int64_t rows) override {
        multiply(static_cast<const float*>(a), static_cast<const float*>(packed), c, rows, kernel.k_,
                 kernel.n_);
      }
    };
    return std::make_unique<PlainWorker>(*this);
  }

  void use_short_tiles(bool) override {}  // always are

 private:
  std::int64_t k_, n_;
};

}  // namespace

std::unique_ptr<GemmKernel> make_plain_kernel(std::int64_t k, std::int64_t n) {
  return std::make_unique<PlainKernel>(k, n);
}

#ifndef MAGI2_ONEDNN
std::unique_ptr<GemmKernel> make_onednn_kernel(DType, std::int64_t, std::int64_t) {
  return nullptr;
}
#endif

}  // namespace magi
