// SPDX-License-Identifier: Apache-2.0
// Checks that the public operations share. Each failure is one line: operation, tensor, what it is, what it
// should be.
#pragma once

#include <initializer_list>
#include <string_view>

#include "core/tensor.h"
#include "ops/ops.h"

namespace magi::checks {

inline bool is_float(DType dtype) {
  return dtype == DType::f32 || dtype == DType::bf16;
}

/// A dense tensor of this shape (−1 matches any length). Matrices may have a row pitch unless `contiguous`.
void tensor(std::string_view op, std::string_view name, const Tensor& t, const Shape& shape,
            bool contiguous = false);

/// One of the dtypes.
void dtype(std::string_view op, std::string_view name, const Tensor& t, std::initializer_list<DType> allowed);

/// f32 or bf16.
inline void work_dtype(std::string_view op, std::string_view name, const Tensor& t) {
  dtype(op, name, t, {DType::f32, DType::bf16});
}

/// Contiguous f32 of this shape.
inline void f32(std::string_view op, std::string_view name, const Tensor& t, const Shape& shape) {
  tensor(op, name, t, shape, true);
  dtype(op, name, t, {DType::f32});
}

/// Segments run from row 0 to `rows` without gaps. One-group weights need no segments: an empty list is fine
/// then.
void segments(std::string_view op, const Segments& list, std::int64_t rows, int groups);

void norm(std::string_view op, const NormWeight& w, std::int64_t width);

/// What pack_linear of any backend starts with: checks its arguments and fills in all but `data`; bias f32,
/// on the host.
LinearWeight linear_weight(const Tensor& weight, const Tensor& bias, int groups, DType dtype);

/// What pack_experts of any backend starts with: checks its arguments and fills in the sizes.
ExpertWeight expert_weight(const Tensor& gate, const Tensor& up, const Tensor& down, std::int64_t heads,
                           DType dtype);

/// What pack_conv of any backend starts with: checks its arguments and fills in all but `data`; bias f32, on
/// the host.
ConvWeight conv_weight(const Tensor& weight, const Tensor& bias, bool depthwise, bool transposed,
                       DType dtype);

/// Bytes of all tensors that are defined.
double bytes(std::initializer_list<const Tensor*> tensors);

}  // namespace magi::checks
