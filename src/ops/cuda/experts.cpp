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

/// What waits to be combined, at most, about: at the release's 272p the results of all heads. More at once
/// would be no faster.
constexpr std::int64_t kWaiting = std::int64_t{5} << 28;

/// Sorted routing, then the results of the heads that are run at once, all of them where they fit.
struct ExpertScratch {
  int heads_at_once = 0;
  std::int64_t results = 0;  ///< where they begin
  std::int64_t bytes = 0;

  ExpertScratch(const MoeShape& shape, DType dtype) {
    const std::int64_t head_bytes =
        shape.rows * shape.top_k * shape.dim * static_cast<std::int64_t>(size_of(dtype));
    heads_at_once = static_cast<int>(
        std::clamp<std::int64_t>(kWaiting / std::max<std::int64_t>(head_bytes, 1), 1, shape.heads));
    results = (static_cast<std::int64_t>(cuda::moe_workspace_bytes(shape)) + 255) / 256 * 256;
    bytes = results + heads_at_once * head_bytes;
  }
};

/// The Hopper kernels' own layout of bf16 weights is one tensor; the portable kernels have three.
bool is_packed(const ExpertWeight& w) {
  return !w.up.defined() && !w.nvfp4.defined();
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
    cuda::pack_router(gate.data<float>(), scratch(), shape, stream());
    cuda::route(z.raw(), z.pitch(), scratch(), bias.data<float>(), scale, index, weight, shape, stream());
    return;
  }
  require(cuda::moe_portable_takes(shape), "route: {} experts of width {}, top {}: too much for the GPU",
          shape.experts, shape.dim, shape.top_k);
  cuda::route_portable(z.raw(), z.pitch(), z.dtype(), gate.data<float>(), bias.data<float>(), scale, index,
                       weight, shape, stream());
}

std::int64_t CudaOps::route_scratch(const Tensor& z, const Tensor& gate, std::int64_t heads,
                                    std::int64_t top_k) const {
  if (z.dtype() != DType::bf16) return 0;  // only the Hopper kernel has any
  const MoeShape shape = shape_of(z, heads, gate.dim(0) / heads, 0, top_k);
  return static_cast<std::int64_t>(cuda::packed_router_bytes(shape));
}

std::int64_t CudaOps::experts_scratch(const Tensor& z, const Routing& routing, const ExpertWeight& w) const {
  return ExpertScratch(shape_of(z, w.heads, w.experts, w.hidden, routing.index.dim(2)), z.dtype()).bytes;
}

void CudaOps::do_experts(const Tensor& z, const Routing& routing, const ExpertWeight& w,
                         std::span<const Tensor> y) {
  if (z.dim(0) == 0) return;
  const MoeShape shape = shape_of(z, w.heads, w.experts, w.hidden, routing.index.dim(2));
  const bool on_hopper = aligned_for_hopper(z) && cuda::moe_sm90_takes(shape);
  require(is_packed(w) ? on_hopper : cuda::moe_portable_takes(shape),
          "experts: width {} by {}, top {}: the GPU's kernels do not take this", shape.dim, shape.hidden,
          shape.top_k);
  const ExpertScratch parts(shape, z.dtype());
  const cuda::SortedRouting sorted =
      cuda::sort_routing(routing.index.data<std::int32_t>(), scratch(), shape, stream());
  void* const expanded = static_cast<std::byte*>(scratch()) + parts.results;
  const int at_once = parts.heads_at_once;
  for (int first = 0; first < shape.heads; first += at_once) {
    const int count = std::min(at_once, shape.heads - first);
    if (is_packed(w)) {
      cuda::run_experts(z.raw(), z.pitch(), w.gate.rows(first, count).raw(), sorted, expanded, first, count,
                        shape, stream());
    } else if (w.nvfp4.defined() && on_hopper) {
      cuda::run_experts_nvfp4(z.raw(), z.pitch(), w.nvfp4.rows(first, count).raw(), sorted, expanded, first,
                              count, shape, stream());
    } else {
      cuda::PortableExperts weights;
      if (w.nvfp4.defined()) {
        weights.nvfp4 = w.nvfp4.rows(first, count).raw();
      } else {
        const auto of = [&](const Tensor& t) { return t.rows(first * w.experts, count * w.experts).raw(); };
        weights = {of(w.gate), of(w.up), of(w.down)};
      }
      cuda::run_experts_portable(z.raw(), z.pitch(), z.dtype(), weights, sorted, expanded, first, count,
                                 shape, stream());
    }
    cuda::combine_experts(expanded, routing.weight.data<float>(), Tensor(y[0]).raw(), y[0].pitch(),
                          cuda::later_rows(y), z.dtype(), first, count, shape, stream());
  }
}

}  // namespace magi
