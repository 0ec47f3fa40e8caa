// SPDX-License-Identifier: Apache-2.0
// Weights of linear layers and experts → column tiles in the kernels' layout.
#include "ops/checks.h"
#include "ops/cpu/cpu_ops.h"
#include "ops/cpu/gemm.h"

namespace magi {
namespace {

/// Weights of a bf16 product are bf16 numbers, even where the kernel multiplies in f32. For an f32 product
/// both are converted tile by tile; rarer dtypes as a whole beforehand.
Tensor readable(std::string_view what, const Tensor& t, DType dtype) {
  require(t.defined() && t.contiguous(), "{}: weights must be contiguous", what);
  if (dtype == DType::bf16) return t.to(DType::bf16);
  return t.dtype() == DType::bf16 ? t : t.to(DType::f32);
}

/// Packs `matrices` equal matrices [depth, columns] (or transposed), stored one after the other.
Tensor pack_matrices(const Tensor& source, std::int64_t matrices, const ColumnTiles& tiles, bool transposed) {
  const Shape shape{matrices, static_cast<std::int64_t>(tiles.bytes())};
  Tensor packed = Tensor::empty(DType::u8, shape);
  const std::size_t matrix_bytes =
      static_cast<std::size_t>(tiles.depth * tiles.columns) * size_of(source.dtype());
  const std::int64_t work = matrices * tiles.count;
#pragma omp parallel for schedule(dynamic, 4)
  for (std::int64_t i = 0; i < work; ++i) {
    const std::int64_t matrix = i / tiles.count, tile = i % tiles.count;
    const auto* from =
        static_cast<const std::byte*>(source.raw()) + static_cast<std::size_t>(matrix) * matrix_bytes;
    auto* to =
        static_cast<std::byte*>(packed.raw()) + static_cast<std::size_t>(i) * tiles.gemm->packed_bytes();
    tiles.pack_tile(from, source.dtype(), transposed, tile, to);
  }
  return packed;
}

/// With a counting arena: the packed matrices' size without their memory.
Tensor planned(DType dtype, std::int64_t matrices, std::int64_t depth, std::int64_t columns) {
  const auto bytes = static_cast<std::int64_t>(ColumnTiles::planned_bytes(dtype, depth, columns));
  return Tensor::view(nullptr, DType::u8, {matrices, bytes});
}

}  // namespace

LinearWeight CpuOps::pack_linear(const Tensor& weight, int groups, DType dtype, const Tensor& bias) {
  LinearWeight w = checks::linear_weight(weight, bias, groups, dtype);
  w.data = arena().counts_only() ? counted(planned(dtype, groups, w.in, w.out))
                                 : pack_matrices(readable("pack_linear", weight, dtype), groups,
                                                 ColumnTiles(dtype, w.in, w.out), true);
  return w;
}

ExpertWeight CpuOps::pack_experts(const Tensor& gate, const Tensor& up, const Tensor& down,
                                  std::int64_t heads, DType dtype) {
  ExpertWeight w = checks::expert_weight(gate, up, down, heads, dtype);
  if (arena().counts_only()) {
    w.gate = counted(planned(dtype, heads * w.experts, w.dim, w.hidden));
    w.up = counted(planned(dtype, heads * w.experts, w.dim, w.hidden));
    w.down = counted(planned(dtype, heads * w.experts, w.hidden, w.dim));
    return w;
  }
  const std::int64_t matrices = heads * w.experts;
  const ColumnTiles in(dtype, w.dim, w.hidden), out(dtype, w.hidden, w.dim);
  w.gate = pack_matrices(readable("pack_experts", gate, dtype), matrices, in, false);
  w.up = pack_matrices(readable("pack_experts", up, dtype), matrices, in, false);
  w.down = pack_matrices(readable("pack_experts", down, dtype), matrices, out, false);
  return w;
}

}  // namespace magi
