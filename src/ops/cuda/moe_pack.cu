// SPDX-License-Identifier: Apache-2.0
// Load-time layouts of the Hopper kernels: weights as images of their shared-memory tiles, so that the
// kernels stream them with plain bulk copies.
#include "ops/cuda/launch.cuh"
#include "ops/cuda/moe.h"
#include "ops/cuda/moe_sm90.cuh"

namespace magi::cuda {
namespace moe {
namespace {

struct PackArgs {
  const __nv_bfloat16 *gate, *up, *down;
  uint4* packed;
  std::int64_t pieces;  ///< of 16 bytes, of all experts
  int hidden, chunks;
};

/// One 16-byte piece of the packed layout per step; neighbouring threads take neighbouring columns.
__global__ void pack_experts_kernel(PackArgs a) {
  constexpr int kPieces = kBlockBytes / 16;
  const std::int64_t stride = static_cast<std::int64_t>(gridDim.x) * blockDim.x;
  for (std::int64_t i = static_cast<std::int64_t>(blockIdx.x) * blockDim.x + threadIdx.x; i < a.pieces;
       i += stride) {
    const std::int64_t block = i / kPieces;
    const int within = static_cast<int>(i % kPieces);
    const std::int64_t expert = block / (a.chunks * kBlocksPerChunk);
    const int chunk = static_cast<int>(block % (a.chunks * kBlocksPerChunk)) / kBlocksPerChunk;
    const int part = static_cast<int>(block % kBlocksPerChunk);
    const std::int64_t base = expert * kDim * a.hidden;
    const __nv_bfloat16* from;
    int pitch, to;
    if (part < 2) {  // two tiles of 128 columns × 64 of K
      const int n = within % 128, piece = within / 128 % 8, tile = within / 1024;
      const int k = part * 128 + tile * 64 + piece * 8;
      from =
          (n < 64 ? a.gate : a.up) + base + static_cast<std::int64_t>(k) * a.hidden + chunk * kChunk + n % 64;
      pitch = a.hidden;
      to = tile * (kBlockBytes / 2) + swizzled(n, piece);
    } else {  // one tile of 256 columns × 64 of K
      const int n = within % 256, piece = within / 256;
      from = a.down + base + static_cast<std::int64_t>(chunk * kChunk + piece * 8) * kDim + output_column(n);
      pitch = kDim;
      to = swizzled(n, piece);
    }
    __align__(16) __nv_bfloat16 value[8];
    for (int j = 0; j < 8; ++j) value[j] = from[static_cast<std::int64_t>(j) * pitch];
    a.packed[block * kPieces + to / 16] = *reinterpret_cast<const uint4*>(value);
  }
}

/// One 16-byte piece (8 of K of one expert) per thread.
__global__ void pack_router_kernel(const float* gate, uint4* packed, int heads) {
  constexpr int kPieces = kBlockBytes / 16;
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= heads * kGateBlocks * kPieces) return;
  const int block = i / kPieces, n = i % kPieces / 8, piece = i % 8;
  const int head = block / kGateBlocks, term = kTerms - 1 - block % kGateBlocks / 4,
            k = block % 4 * 64 + piece * 8;
  const float* from = gate + (static_cast<std::int64_t>(head) * kExperts + n) * kDim + k;
  __align__(16) __nv_bfloat16 value[8];
  for (int j = 0; j < 8; ++j) {
    float rest = from[j];
    for (int t = 0; t < term; ++t) rest -= __bfloat162float(__float2bfloat16(rest));
    value[j] = __float2bfloat16(rest);
  }
  packed[static_cast<std::int64_t>(block) * kPieces + swizzled(n, piece) / 16] =
      *reinterpret_cast<const uint4*>(value);
}

}  // namespace
}  // namespace moe

std::size_t packed_experts_bytes(const MoeShape& shape, int heads) {
  return std::size_t{3} * 2 * heads * shape.experts * shape.dim * shape.hidden;
}

void pack_experts(const void* gate, const void* up, const void* down, void* packed, const MoeShape& shape,
                  int heads, cudaStream_t stream) {
  moe::PackArgs args{static_cast<const __nv_bfloat16*>(gate),
                     static_cast<const __nv_bfloat16*>(up),
                     static_cast<const __nv_bfloat16*>(down),
                     static_cast<uint4*>(packed),
                     static_cast<std::int64_t>(packed_experts_bytes(shape, heads) / 16),
                     shape.hidden,
                     shape.hidden / moe::kChunk};
  moe::pack_experts_kernel<<<132 * 16, 256, 0, stream>>>(args);
  check_launch("pack_experts");
}

std::size_t packed_router_bytes(const MoeShape& shape) {
  return std::size_t{2} * moe::kTerms * shape.heads * shape.experts * shape.dim;
}

void pack_router(const float* gate, void* packed, const MoeShape& shape, cudaStream_t stream) {
  const int pieces = static_cast<int>(packed_router_bytes(shape) / 16);
  moe::pack_router_kernel<<<(pieces + 255) / 256, 256, 0, stream>>>(gate, static_cast<uint4*>(packed),
                                                                    shape.heads);
  check_launch("pack_router");
}

}  // namespace magi::cuda
