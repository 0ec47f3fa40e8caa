// SPDX-License-Identifier: Apache-2.0
// The expert FFN of experts_sm90.cu fed with NVFP4 weights, which become bf16 in registers: the products are
// turned round, hᵀ = swiglu7(Wᵀ·zᵀ), yᵀ = W_downᵀ·hᵀ, so that weights are the A operand, which wgmma takes
// from registers, and rows the B operand. Every weight is dequantised once for the 128 rows of a work item,
// by the thread that multiplies it. Sums run over the depth in the same steps as in the kernel for bf16
// weights, so the results are the same bits.
//
// Two consumer warpgroups share an item's rows: of each 64 hidden columns one computes 32 (gate in rows 0–7
// of a warp's 16, up in rows 8–15: both of a column in one thread), and 128 of the 256 columns of the result.
// They exchange hᵀ through shared memory; a chunk's down product runs under the next chunk's swiglu7. One
// producer warpgroup: warp 0 streams weights, warp 1 hands out work items, warps 2 and 3 gather rows of z for
// the next item.
#include "ops/cuda/experts_nvfp4_sm90.cuh"
#include "ops/cuda/moe.h"

#ifndef MAGI_SM90A
#pragma nv_diag_suppress 177  // elsewhere the kernel has no body, and its parts no use
#endif

namespace magi::cuda {
namespace moe {
namespace {

// ---------------------------------------------------------------- producers

/// Streams the experts' weights; one thread.
__device__ void stream_weights(Nvfp4Shared& s, const ExpertsArgs& a) {
  Items<false> items{s.items};
  int4 item{};
  for (std::uint32_t n = 0; items.next(item);) {
    const unsigned char* from = a.expert(item);
    for (int chunk = 0; chunk < a.chunks; ++chunk, ++n)
      for (int i = 0; i < kPieces; ++i, from += kPiece) {
        std::uint64_t* full = &s.full[n % 2][i];
        barrier_wait(&s.empty[n % 2][i], (n / 2 % 2) ^ 1);
        barrier_expect(full, kPiece);
        load_bulk(full, s.pieces[n % 2][i], from, kPiece);
      }
  }
}

/// Gathers the rows of z by routing, 64 of 128; one warp.
__device__ void gather_rows(Nvfp4Shared& s, const ExpertsArgs& a, int half, int lane) {
  Items<true> items{s.items};
  int4 item{};
  for (int n = 0; items.next(item); ++n) {
    const int buffer = n % 2;
    const int* order = a.order + item.w * a.slots + item.y;
    const __nv_bfloat16* z = a.z + item.w * kDim;
    barrier_wait(&s.z_empty[buffer], (n / 2 % 2) ^ 1);
    if (half == 0 && lane == 0) {
      const auto* scales =  // behind the tiles
          reinterpret_cast<const float*>(a.expert(item) + a.chunks * (kPieces * kPiece));
      float rest[2];
      s.lift[buffer] = make_uint2(nvfp4_lift(scales[0], rest[0]), nvfp4_lift(scales[1], rest[1]));
      s.scale[buffer] = make_float4(rest[0], rest[1], scales[2] * kNvfp4Rest, 0);
      s.item[buffer] = item;
    }
#pragma unroll 1
    for (int base = half * 64; base < min(item.z, half * 64 + 64); base += 32) {
      const int slot = base + lane < item.z ? order[base + lane] : -1, token = slot < 0 ? -1 : slot / a.top_k;
      s.slot[buffer][base + lane] = slot;
#pragma unroll 1
      for (int i = 0; i < 32; ++i) {
        const int row = __shfl_sync(0xffffffffu, token, i);
        if (row >= 0) copy_row(s.z[buffer], base + i, z + row * a.z_pitch, lane);
      }
    }
    copies_wait();
    fence_async_proxy();
    barrier_arrive(&s.z_full[buffer]);
  }
}

template <int kN>
__device__ __forceinline__ void consume(Nvfp4Shared& s, const ExpertsArgs& a) {
  Consumer<kN> c(s);
  Items<true> items{s.items};
  int4 item{};
  for (int n = 0; items.next(item); ++n) {
    barrier_wait(&s.z_full[n % 2], n / 2 % 2);
    if (threadIdx.x >= kWarpgroup) barrier_wait(&s.lead, n % 2);
    c.run(a, n % 2);
    barrier_arrive(&s.z_empty[n % 2]);
  }
}

/// The items of more than kN / 2 rows, and of at most kN.
template <int kN>
__global__ __launch_bounds__(kThreads, 1) void experts_nvfp4_kernel(const __grid_constant__ ExpertsArgs a) {
#ifdef MAGI_SM90A
  extern __shared__ __align__(1024) unsigned char memory[];
  Nvfp4Shared& s = *reinterpret_cast<Nvfp4Shared*>(memory);
  share_expert_roles(
      s, a, [](int rows) { return (rows > 64) == (kN > 64); }, [&] { stream_weights(s, a); },
      [&](int half, int lane) { gather_rows(s, a, half, lane); }, [&] { consume<kN>(s, a); });
#else
  __trap();  // built for sm_90 without the a
#endif
}

}  // namespace
}  // namespace moe

void run_experts_nvfp4(const void* z, std::int64_t z_pitch, const void* experts, const SortedRouting& sorted,
                       void* expanded, int first_head, int head_count, const MoeShape& shape,
                       cudaStream_t stream) {
  const Nvfp4Layout layout{shape.experts, shape.dim, shape.hidden};
  for (const auto kernel : {moe::experts_nvfp4_kernel<128>, moe::experts_nvfp4_kernel<64>})
    moe::launch_experts(kernel, sizeof(moe::Nvfp4Shared), z, z_pitch, experts, layout.expert_bytes(), sorted,
                        expanded, first_head, head_count, shape, stream, "run_experts_nvfp4");
}

}  // namespace magi::cuda
