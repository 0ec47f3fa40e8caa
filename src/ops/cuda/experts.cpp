// SPDX-License-Identifier: Apache-2.0
// Router and experts: which kernels take a shape, their weights, and their scratch.
#include <algorithm>

#include "ops/checks.h"
#include "ops/cuda/check.h"
#include "ops/cuda/cuda_ops.h"
#include "ops/cuda/moe.h"

namespace magi {
namespace {

using cuda::MoeShape;

constexpr int kPackedTopK = 6;  ///< what the Hopper kernels are made for

MoeShape shape_of(const Tensor& z, std::int64_t heads, std::int64_t experts, std::int64_t hidden,
                  std::int64_t top_k) {
  return {z.dim(0),
          static_cast<int>(heads),
          static_cast<int>(experts),
          static_cast<int>(z.dim(1) / heads),
          static_cast<int>(hidden),
          static_cast<int>(top_k)};
}

/// Weights of the Hopper kernels are one tensor; the portable ones have three.
bool is_packed(const ExpertWeight& w) {
  return !w.up.defined();
}

bool aligned_for_hopper(const Tensor& z) {
  return z.dtype() == DType::bf16 && z.pitch() % 8 == 0 &&
         reinterpret_cast<std::uintptr_t>(z.raw()) % 16 == 0;
}

}  // namespace

ExpertWeight CudaOps::pack_experts(const Tensor& gate, const Tensor& up, const Tensor& down,
                                   std::int64_t heads, DType dtype) {
  ExpertWeight w = checks::expert_weight(gate, up, down, heads, dtype);
  const MoeShape shape{1,
                       static_cast<int>(heads),
                       static_cast<int>(w.experts),
                       static_cast<int>(w.dim),
                       static_cast<int>(w.hidden),
                       kPackedTopK};
  if (dtype != DType::bf16 || !stream_ || !cuda::moe_sm90_takes(shape)) {
    const auto load = [&](const Tensor& t) {
      return stream_ ? upload(t.to(dtype)) : allocate(dtype, t.shape());
    };
    w.gate = load(gate);
    w.up = load(up);
    w.down = load(down);
    return w;
  }
  const auto head_bytes = static_cast<std::int64_t>(cuda::packed_experts_bytes(shape, 1));
  w.gate = allocate(DType::u8, {heads, head_bytes});
  for (std::int64_t h = 0; h < heads; ++h) {
    const auto load = [&](const Tensor& t) { return upload(t.rows(h * w.experts, w.experts).to(dtype)); };
    const Tensor g = load(gate), u = load(up),
                 d = load(down);  // freed at the end of the round, after the kernel
    cuda::pack_experts(g.raw(), u.raw(), d.raw(), w.gate.rows(h, 1).raw(), shape, 1, stream());
  }
  return w;
}

void CudaOps::do_route(const Tensor& z, const Tensor& gate, const Tensor& bias, std::int64_t heads,
                       std::int64_t top_k, float scale, Routing& routing) {
  if (z.dim(0) == 0) return;
  const MoeShape shape = shape_of(z, heads, gate.dim(0) / heads, 64, top_k);
  int* index = routing.index.data<std::int32_t>();
  float* weight = routing.weight.data<float>();
  if (aligned_for_hopper(z) && cuda::moe_sm90_takes(shape)) {
    const Tensor packed =
        arena().alloc(DType::u8, {static_cast<std::int64_t>(cuda::packed_router_bytes(shape))});
    void* to = const_cast<void*>(packed.raw());
    cuda::pack_router(gate.data<float>(), to, shape, stream());
    cuda::route(z.raw(), z.pitch(), to, bias.data<float>(), scale, index, weight, shape, stream());
    return;
  }
  require(cuda::moe_portable_takes(shape), "route: {} experts of width {}, top {}: too much for the GPU",
          shape.experts, shape.dim, shape.top_k);
  cuda::route_portable(z.raw(), z.pitch(), z.dtype(), gate.data<float>(), bias.data<float>(), scale, index,
                       weight, shape, stream());
}

void CudaOps::do_experts(const Tensor& z, const Routing& routing, const ExpertWeight& w, Tensor& y) {
  if (z.dim(0) == 0) return;
  const MoeShape shape = shape_of(z, w.heads, w.experts, w.hidden, routing.index.dim(2));
  require(
      is_packed(w) ? aligned_for_hopper(z) && cuda::moe_sm90_takes(shape) : cuda::moe_portable_takes(shape),
      "experts: width {} by {}, top {}: the GPU's kernels do not take this", shape.dim, shape.hidden,
      shape.top_k);
  Tensor workspace = arena().alloc(DType::u8, {static_cast<std::int64_t>(cuda::moe_workspace_bytes(shape))});
  const cuda::SortedRouting sorted =
      cuda::sort_routing(routing.index.data<std::int32_t>(), workspace.raw(), shape, stream());

  // All heads in one launch where their results fit into a fourth of the free scratch memory.
  const std::int64_t choices = shape.rows * shape.top_k * shape.dim;
  const std::size_t head_bytes = static_cast<std::size_t>(choices) * size_of(z.dtype());
  const std::size_t free = arena().capacity_bytes() - arena().used_bytes();
  const auto at_once =
      static_cast<int>(std::clamp<std::size_t>(free / 4 / std::max<std::size_t>(head_bytes, 1), 1, w.heads));
  Tensor expanded = arena().alloc(z.dtype(), {at_once, choices});
  for (int first = 0; first < shape.heads; first += at_once) {
    const int count = std::min(at_once, shape.heads - first);
    if (is_packed(w)) {
      cuda::run_experts(z.raw(), z.pitch(), w.gate.rows(first, count).raw(), sorted, expanded.raw(), first,
                        count, shape, stream());
    } else {
      const auto of = [&](const Tensor& t) { return t.rows(first * w.experts, count * w.experts).raw(); };
      cuda::run_experts_portable(z.raw(), z.pitch(), z.dtype(), of(w.gate), of(w.up), of(w.down), sorted,
                                 expanded.raw(), first, count, shape, stream());
    }
    cuda::combine_experts(expanded.raw(), routing.weight.data<float>(), y.raw(), y.pitch(), z.dtype(), first,
                          count, shape, stream());
  }
}

}  // namespace magi
