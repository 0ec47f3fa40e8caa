// SPDX-License-Identifier: Apache-2.0
// Matrix products through cuBLASLt, so that a row's bits do not depend on how many rows there are: one
// algorithm for each shape of the weights, without splitting the sum over k.
#pragma once

#include <cublasLt.h>

#include <cstdint>
#include <map>
#include <memory>
#include <vector>

#include "core/tensor.h"

namespace magi::cuda {

class MatrixProducts {
 public:
  MatrixProducts();

  /// y [rows, out] = x [rows, in] · w [out, in]ᵀ, sums in f32 (TF32 is off); with `add` y plus that. x and w
  /// of one dtype; y of that dtype or f32. All may have a row pitch. Memory of the current device.
  void multiply(const Tensor& x, const Tensor& w, Tensor& y, bool add, cudaStream_t stream);

  /// A word on the device, zero, for kernels that leave it so.
  int* counter() const { return static_cast<int*>(counter_.get()); }

 private:
  struct Key {
    std::int64_t out, in;
    DType input, output;
    std::uint32_t x_alignment, w_alignment, y_alignment;  ///< bytes, of pointers and pitches, at most 256
    auto operator<=>(const Key&) const = default;
  };
  const cublasLtMatmulAlgo_t& algorithm(const Key& key);

  std::shared_ptr<cublasLtContext> handle_;
  std::shared_ptr<void> workspace_, counter_;
  std::map<Key, cublasLtMatmulAlgo_t> algorithms_;
};

}  // namespace magi::cuda
