// SPDX-License-Identifier: Apache-2.0
// How the plain CPU operations choose an element type and share out rows.
#pragma once

#include <algorithm>
#include <cstdint>
#include <span>
#include <vector>

#include "core/segments.h"
#include "core/tensor.h"

namespace magi {

/// body(T{}) with the element type T of a work dtype (f32 or bf16).
template <typename Body>
void with_type(DType dtype, const Body& body) {
  if (dtype == DType::bf16)
    body(bf16{});
  else
    body(float{});
}

/// body(i) for i < n, shared out among OpenMP's threads. Bodies must not throw.
template <typename Body>
void parallel_for(std::int64_t n, const Body& body) {
#pragma omp parallel for schedule(static)
  for (std::int64_t i = 0; i < n; ++i) body(i);
}

/// body(first, count) over 0…n−1 in pieces that are worth a thread's while: for operations element by
/// element.
template <typename Body>
void parallel_pieces(std::int64_t n, const Body& body) {
  constexpr std::int64_t kPiece = 1 << 14;
  parallel_for((n + kPiece - 1) / kPiece,
               [&](std::int64_t i) { body(i * kPiece, std::min(kPiece, n - i * kPiece)); });
}

/// Element [row, column] of a result that takes its rows one tensor after another.
template <typename T>
T* element_of(std::span<const Tensor> y, std::int64_t row, std::int64_t column) {
  auto part = y.begin();
  for (; row >= part->dim(0); ++part) row -= part->dim(0);
  return Tensor(*part).data<T>() + row * part->pitch() + column;
}

/// The weight group of each row: its modality where there are three groups, else 0.
inline std::vector<std::uint8_t> row_groups(const Segments& segments, int groups, std::int64_t rows) {
  std::vector<std::uint8_t> result(static_cast<std::size_t>(rows), 0);
  if (groups == 1) return result;
  for (const Segment& s : segments)
    std::fill_n(result.begin() + s.first, s.rows, static_cast<std::uint8_t>(s.modality));
  return result;
}

}  // namespace magi
