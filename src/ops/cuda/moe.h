// SPDX-License-Identifier: Apache-2.0
// Launchers of the mixture-of-experts kernels (model.md section 4, "routed"). Plain pointers to device
// memory; everything is enqueued on `stream`, nothing waits for the device, no size depends on the routing.
// Launch errors throw Error.
//
// Order of use, per layer: route → sort_routing → run_experts → combine_experts. The last two may be run head
// range by head range (weights are lent by head); the others do all heads. route and run_experts exist twice:
// for Hopper (sizes that satisfy moe_sm90_takes, packed weights) and portable (any architecture from sm_80,
// weights as in the checkpoint). Both take NVFP4 weights as they lie in files.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>

#include "core/dtype.h"
#include "ops/cuda/later_rows.h"

namespace magi::cuda {

struct MoeShape {
  std::int64_t rows = 0;  ///< N; N·top_k < 2³¹
  int heads = 0;          ///< H
  int experts = 0;        ///< E, a head
  int dim = 0;            ///< d_head
  int hidden = 0;         ///< d_expert
  int top_k = 0;
};

/// Whether the Hopper kernels take this shape: dim 256, hidden a multiple of 64, 256 experts, top 6, device
/// of compute capability 9.0.
bool moe_sm90_takes(const MoeShape& shape);

// ---------------------------------------------------------------- weights, laid out once at load time

/// Bytes of `heads` heads of packed experts; equals the bytes of the three bf16 matrices.
std::size_t packed_experts_bytes(const MoeShape& shape, int heads);
/// gate, up [heads·E, dim, hidden], down [heads·E, hidden, dim] bf16 → packed. Layout: an expert after the
/// other; for each 64 hidden columns three 32 KB blocks in the order in which the kernel consumes them, each
/// an image of its shared-memory tile (rows of 128 bytes, 16-byte pieces XORed with row mod 8): two of [gate
/// 64 | up 64 columns] × 128 of K, as two tiles of 64 of K; one of 256 output columns × 64 hidden. Output
/// columns are permuted so that a thread's results are 16 contiguous bytes (experts_sm90.cu, output_column).
void pack_experts(const void* gate, const void* up, const void* down, void* packed, const MoeShape& shape,
                  int heads, cudaStream_t stream);

/// Bytes of the packed router matrix: three bf16 terms (high, middle, low: gate = their sum to 2^-24) per
/// element.
std::size_t packed_router_bytes(const MoeShape& shape);
/// gate [H·E, dim] f32 → packed.
void pack_router(const float* gate, void* packed, const MoeShape& shape, cudaStream_t stream);

// ---------------------------------------------------------------- a layer

/// z [N, H·dim] bf16, pitch elements from row to row (a multiple of 8, z 16-byte aligned); bias [H·E] f32.
/// Writes index [N,H,k] i32 by falling score (equal scores: lower index first) and weight [N,H,k] f32 = σ of
/// the chosen / max(Σ, 1e-12) · scale; the σ is score − bias, or computed anew where |bias| > 1. A row with
/// NaN gets indices within range.
void route(const void* z, std::int64_t z_pitch, const void* packed_router, const float* bias, float scale,
           int* index, float* weight, const MoeShape& shape, cudaStream_t stream);

inline constexpr int kMoeItemRows = 128;  ///< most rows of a work item

/// Routing sorted by (head, expert), in a workspace of moe_workspace_bytes. Built on the device, the same
/// bits every time.
struct SortedRouting {
  int* order = nullptr;       ///< [H, N·k]: slot = token·k + choice, by expert, then token
  int4* items = nullptr;      ///< work items: {head·E + expert, first place in its head's order, rows, head}
  int* head_items = nullptr;  ///< [H+1]: first item of each head
  int* cursor = nullptr;      ///< the next item to hand out
  int* expert_start = nullptr;  ///< [H, E+1]: first place of each expert in its head's order
  int* block_start = nullptr;   ///< scratch
};
std::size_t moe_workspace_bytes(const MoeShape& shape);
SortedRouting sort_routing(const int* index, void* workspace, const MoeShape& shape, cudaStream_t stream);

/// Heads [first, first + count): E(z) as bf16 → expanded [count, N·k, dim] (every row is written); packed =
/// the packed experts of head `first`.
void run_experts(const void* z, std::int64_t z_pitch, const void* packed, const SortedRouting& sorted,
                 void* expanded, int first_head, int head_count, const MoeShape& shape, cudaStream_t stream);

/// The same with NVFP4 weights (ops/nvfp4.h): experts = head `first_head`'s first byte, 128-byte aligned. The
/// results are run_experts' with the dequantised weights, bit for bit.
void run_experts_nvfp4(const void* z, std::int64_t z_pitch, const void* experts, const SortedRouting& sorted,
                       void* expanded, int first_head, int head_count, const MoeShape& shape,
                       cudaStream_t stream);

/// y [N, pitch], columns head·dim… of the heads in the range: Σ weight·E(z), f32 in order of choice. expanded
/// and y in `dtype` (f32 or bf16); pitch in elements; in bf16 with dim and pitch multiples of 8, both 16-byte
/// aligned. Later rows as `later` says.
void combine_experts(const void* expanded, const float* weight, void* y, std::int64_t y_pitch,
                     const LaterRows& later, DType dtype, int first_head, int head_count,
                     const MoeShape& shape, cudaStream_t stream);

// ---------------------------------------------------------------- portable

/// Whether the portable kernels take this shape: dim ≤ 256, experts ≤ 1024, top_k ≤ 32 and ≤ experts.
bool moe_portable_takes(const MoeShape& shape);

/// As route; z in `dtype`, gate [H·E, dim] f32, all arithmetic f32.
void route_portable(const void* z, std::int64_t z_pitch, DType dtype, const float* gate, const float* bias,
                    float scale, int* index, float* weight, const MoeShape& shape, cudaStream_t stream);

/// Weights of a range of heads for the portable kernels: gate, up [heads·E, dim, hidden], down [heads·E,
/// hidden, dim] in z's dtype, 16-byte aligned; or the same as NVFP4 (ops/nvfp4.h), the others null then.
struct PortableExperts {
  const void *gate = nullptr, *up = nullptr, *down = nullptr;
  const void* nvfp4 = nullptr;
};

/// As run_experts; z and expanded in `dtype`. bf16: tensor cores through mma.sync; f32: plain f32 arithmetic,
/// for checking. z 16-byte aligned.
void run_experts_portable(const void* z, std::int64_t z_pitch, DType dtype, const PortableExperts& weights,
                          const SortedRouting& sorted, void* expanded, int first_head, int head_count,
                          const MoeShape& shape, cudaStream_t stream);

}  // namespace magi::cuda
