// SPDX-License-Identifier: Apache-2.0
#include "ops/checks.h"

#include <algorithm>

namespace magi::checks {

void tensor(std::string_view op, std::string_view name, const Tensor& t, const Shape& shape,
            bool contiguous) {
  if (!t.defined()) fail("{}: {} is undefined, expected {}", op, name, to_string(shape));
  bool same = t.shape().size() == shape.size();
  for (std::size_t i = 0; same && i < shape.size(); ++i) same = shape[i] == -1 || shape[i] == t.shape()[i];
  if (!same) fail("{}: {} is {}, expected {}", op, name, to_string(t.shape()), to_string(shape));
  if (t.contiguous() || (!contiguous && t.rank() == 2)) return;
  fail("{}: {} {} has a row pitch, expected contiguous memory", op, name, to_string(t.shape()));
}

void dtype(std::string_view op, std::string_view name, const Tensor& t,
           std::initializer_list<DType> allowed) {
  if (std::find(allowed.begin(), allowed.end(), t.dtype()) != allowed.end()) return;
  std::string list;
  for (const DType d : allowed) list += (list.empty() ? "" : " or ") + std::string(name_of(d));
  fail("{}: {} is {}, expected {}", op, name, name_of(t.dtype()), list);
}

void segments(std::string_view op, const Segments& list, std::int64_t rows, int groups) {
  require(groups == 1 || groups == kModalities, "{}: {} weight groups, expected 1 or {}", op, groups,
          kModalities);
  if (groups == 1 && list.empty()) return;
  std::int64_t next = 0;
  for (const Segment& s : list) {
    require(s.first == next && s.rows >= 0, "{}: a segment of {} rows starts at row {}, expected row {}", op,
            s.rows, s.first, next);
    require(static_cast<int>(s.modality) < kModalities,
            "{}: modality {} of the segment at row {} does not exist", op, static_cast<int>(s.modality),
            s.first);
    next += s.rows;
  }
  require(next == rows, "{}: segments hold {} rows, the tensor {}", op, next, rows);
}

void norm(std::string_view op, const NormWeight& w, std::int64_t width) {
  f32(op, "norm weight", w.weight, {w.groups * width});
}

LinearWeight linear_weight(const Tensor& weight, const Tensor& bias, int groups, DType dtype) {
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
  require(!bias.defined() || bias.numel() == weight.dim(0), "pack_linear: bias {}, expected [{}]",
          to_string(bias.shape()), weight.dim(0));
  if (bias.defined()) w.bias = bias.to(DType::f32).reshape({weight.dim(0)});
  return w;
}

ExpertWeight expert_weight(const Tensor& gate, const Tensor& up, const Tensor& down, std::int64_t heads,
                           DType dtype) {
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
  return w;
}

ConvWeight conv_weight(const Tensor& weight, const Tensor& bias, bool depthwise, bool transposed,
                       DType dtype) {
  const Shape& shape = weight.shape();
  require(weight.rank() >= 3 && weight.rank() <= 5 && weight.numel() > 0,
          "pack_conv: weight {}, expected two channel axes and one to three kernel axes", to_string(shape));
  require(dtype == DType::f32 || dtype == DType::bf16, "pack_conv: {} is no compute dtype", name_of(dtype));
  require(!transposed || (weight.rank() == 3 && !depthwise),
          "pack_conv: transposed convolutions have one kernel axis and one group");
  require(!depthwise || shape[1] == 1, "pack_conv: depthwise weight {}, expected [channels, 1, …]",
          to_string(shape));
  ConvWeight w;
  w.dtype = dtype;
  w.depthwise = depthwise;
  w.transposed = transposed;
  w.out = shape[transposed ? 1 : 0];
  w.in = depthwise ? w.out : shape[transposed ? 0 : 1];
  std::copy(shape.begin() + 2, shape.end(), w.kernel.end() - (weight.rank() - 2));
  require(!bias.defined() || bias.numel() == w.out, "pack_conv: bias {}, expected [{}]",
          to_string(bias.shape()), w.out);
  if (bias.defined()) w.bias = bias.to(DType::f32).reshape({w.out});
  return w;
}

double bytes(std::initializer_list<const Tensor*> tensors) {
  double sum = 0;
  for (const Tensor* t : tensors) {
    if (t->defined()) sum += static_cast<double>(t->bytes());
  }
  return sum;
}

}  // namespace magi::checks
