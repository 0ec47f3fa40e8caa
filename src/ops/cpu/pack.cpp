// SPDX-License-Identifier: Apache-2.0
// Weights of linear layers and experts → column tiles in the kernels' layout.
#include "ops/cpu/cpu_ops.h"
#include "ops/cpu/gemm.h"

namespace magi {
namespace {

/// f32 and bf16 are converted tile by tile; rarer dtypes as a whole beforehand.
Tensor readable(std::string_view what, const Tensor& t) {
  require(t.defined() && t.contiguous(), "{}: weights must be contiguous", what);
  return t.dtype() == DType::f32 || t.dtype() == DType::bf16 ? t : t.to(DType::f32);
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

/// With a counting arena: the weight's place without memory, and without making kernels.
Tensor planned(DType dtype, const Tensor& weight) {
  return Tensor::view(nullptr, dtype, weight.shape());
}

}  // namespace

LinearWeight CpuOps::pack_linear(const Tensor& weight, int groups, DType dtype, const Tensor& bias) {
  require(weight.rank() == 2 && (groups == 1 || groups == kModalities) && weight.dim(0) % groups == 0 &&
              weight.dim(0) > 0 && weight.dim(1) > 0,
          "pack_linear: weight {} for {} groups, expected [groups·out, in]", to_string(weight.shape()),
          groups);
  require(dtype == DType::f32 || dtype == DType::bf16, "pack_linear: {} is no compute dtype", name_of(dtype));
  LinearWeight w;
  w.groups = groups;
  w.out = weight.dim(0) / groups;
  w.in = weight.dim(1);
  w.dtype = dtype;
  w.data = arena().counts_only() ? planned(dtype, weight)
                                 : pack_matrices(readable("pack_linear", weight), groups,
                                                 ColumnTiles(dtype, w.in, w.out), true);
  if (bias.defined()) {
    require(bias.numel() == weight.dim(0), "pack_linear: bias {}, expected [{}]", to_string(bias.shape()),
            weight.dim(0));
    w.bias = bias.to(DType::f32).reshape({weight.dim(0)});
  }
  return w;
}

ExpertWeight CpuOps::pack_experts(const Tensor& gate, const Tensor& up, const Tensor& down,
                                  std::int64_t heads, DType dtype) {
  require(gate.rank() == 3 && heads > 0 && gate.numel() > 0 && gate.dim(0) % heads == 0,
          "pack_experts: W_gate {} for {} heads, expected [heads·experts, dim, hidden]",
          to_string(gate.shape()), heads);
  const std::int64_t matrices = gate.dim(0), dim = gate.dim(1), hidden = gate.dim(2);
  require(up.shape() == gate.shape(), "pack_experts: W_up is {}, W_gate {}", to_string(up.shape()),
          to_string(gate.shape()));
  require(down.shape() == Shape({matrices, hidden, dim}), "pack_experts: W_down is {}, expected {}",
          to_string(down.shape()), to_string({matrices, hidden, dim}));
  require(dtype == DType::f32 || dtype == DType::bf16, "pack_experts: {} is no compute dtype",
          name_of(dtype));
  ExpertWeight w;
  w.heads = heads;
  w.experts = matrices / heads;
  w.dim = dim;
  w.hidden = hidden;
  w.dtype = dtype;
  if (arena().counts_only()) {
    w.gate = planned(dtype, gate);
    w.up = planned(dtype, up);
    w.down = planned(dtype, down);
    return w;
  }
  const ColumnTiles in(dtype, dim, hidden), out(dtype, hidden, dim);
  w.gate = pack_matrices(readable("pack_experts", gate), matrices, in, false);
  w.up = pack_matrices(readable("pack_experts", up), matrices, in, false);
  w.down = pack_matrices(readable("pack_experts", down), matrices, out, false);
  return w;
}

}  // namespace magi
