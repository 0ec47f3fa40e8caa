// SPDX-License-Identifier: Apache-2.0
// Convolutions without stride and dilation on Hopper. A tile of output cells is a box [t,h,w]; its inputs
// under a tap are the same box moved by the tap, which one bulk tensor copy brings, zeros outside of the
// picture included. One producer thread streams, per tap and 64 input channels, that box and the weights; two
// consumer warpgroups multiply (wgmma, f32 accumulators). Blocks stay and take tile after tile, so that
// copies for the next run under the writing of the last.
#include "ops/cuda/conv_rows.cuh"
#include "ops/cuda/hopper.h"
#include "ops/cuda/moe_sm90.cuh"
#include "ops/cuda/sm90.cuh"
#include "ops/cuda/tensor_map.h"

namespace magi::cuda {
namespace {

using namespace magi::sm90;

constexpr int kThreads = 3 * kWarpgroup;
constexpr int kDepth = 64;  ///< input channels a step
constexpr int kConsumers = 2;

/// Of a kernel with kGroups × 64 cells a warpgroup and kColumns channels a tile.
template <int kGroups, int kColumns>
struct Sizes {
  static constexpr int kCells = kConsumers * kGroups * 64;
  static constexpr int kStepBytes = (kCells + kColumns) * kDepth * 2;
  static constexpr int kStages = 200 * 1024 / kStepBytes < 8 ? 200 * 1024 / kStepBytes : 8;

  struct Shared {
    alignas(1024) unsigned char x[kStages][kCells * kDepth * 2];
    alignas(1024) unsigned char w[kStages][kColumns * kDepth * 2];
    std::uint64_t full[kStages], empty[kStages];
  };
  /// 1 KB to align the tiles by.
  static constexpr std::size_t kSharedBytes = sizeof(Shared) + 1024;
};

struct TileArgs {
  CUtensorMap x, weight;
  ConvArgs conv;
  int box[3];    ///< cells of a tile along t, h, w; powers of two
  int boxes[3];  ///< tiles along them
  int column_tiles;
  int tiles;
};

[[maybe_unused]] __device__ __forceinline__ void load_cells(const CUtensorMap* map, std::uint64_t* barrier,
                                                            void* to, int channel, int w, int h, int t) {
  asm volatile(
      "cp.async.bulk.tensor.4d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%3, %4, %5, "
      "%6}], "
      "[%2];" ::"r"(shared_address(to)),
      "l"(map), "r"(shared_address(barrier)), "r"(channel), "r"(w), "r"(h), "r"(t)
      : "memory");
}
[[maybe_unused]] __device__ __forceinline__ void load_weights(const CUtensorMap* map, std::uint64_t* barrier,
                                                              void* to, int channel, int row, int tap) {
  asm volatile(
      "cp.async.bulk.tensor.3d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%3, %4, %5}], "
      "[%2];" ::"r"(shared_address(to)),
      "l"(map), "r"(shared_address(barrier)), "r"(channel), "r"(row), "r"(tap)
      : "memory");
}

[[maybe_unused]] __device__ __forceinline__ void product(float (&d)[128], std::uint64_t a, std::uint64_t b) {
  moe::wgmma_ss_n256(d, a, b, 1);
}
[[maybe_unused]] __device__ __forceinline__ void product(float (&d)[64], std::uint64_t a, std::uint64_t b) {
  wgmma_ss<1>(d, a, b);
}
[[maybe_unused]] __device__ __forceinline__ void product(float (&d)[32], std::uint64_t a, std::uint64_t b) {
#define MAGI_D8(i)                                                                            \
  "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3]), "+f"(d[i + 4]), "+f"(d[i + 5]), \
      "+f"(d[i + 6]), "+f"(d[i + 7])
  asm volatile(
      "wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 "
      "{%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,"
      "%15,%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,%28,%29,%30,%31}, %32, %33, 1, 1, 1, 0, 0;"
      : MAGI_D8(0), MAGI_D8(8), MAGI_D8(16), MAGI_D8(24)
      : "l"(a), "l"(b));
#undef MAGI_D8
}

/// Where a tile lies. Column tiles of one box follow each other: they share its inputs through L2.
struct TilePlace {
  int column, first[3];

  __device__ __forceinline__ TilePlace(const TileArgs& a, int tile, int columns) {
    column = tile % a.column_tiles * columns;
    const int at = tile / a.column_tiles;
    first[2] = at % a.boxes[2] * a.box[2];
    first[1] = at / a.boxes[2] % a.boxes[1] * a.box[1];
    first[0] = at / a.boxes[2] / a.boxes[1] * a.box[0];
  }
};

template <int kGroups, int kColumns>
__device__ __forceinline__ void produce(typename Sizes<kGroups, kColumns>::Shared& s, const TileArgs& a) {
  using S = Sizes<kGroups, kColumns>;
  const ConvShape& shape = a.conv.shape;
  Ring<S::kStages> ring;
  for (int tile = blockIdx.x; tile < a.tiles; tile += gridDim.x) {
    const TilePlace place(a, tile, kColumns);
    int tap = 0;
    for (int t = 0; t < shape.kernel[0]; ++t)
      for (int h = 0; h < shape.kernel[1]; ++h)
        for (int w = 0; w < shape.kernel[2]; ++w, ++tap)
          for (int channel = 0; channel < shape.in; channel += kDepth) {
            barrier_wait(&s.empty[ring.stage], ring.parity ^ 1);
            barrier_expect(&s.full[ring.stage], S::kStepBytes);
            load_cells(&a.x, &s.full[ring.stage], s.x[ring.stage], channel, place.first[2] + w - shape.pad[2],
                       place.first[1] + h - shape.pad[1], place.first[0] + t - shape.pad[0]);
            load_weights(&a.weight, &s.full[ring.stage], s.w[ring.stage], channel, place.column, tap);
            ring.next();
          }
  }
}

/// A warpgroup's cells of a tile.
template <int kGroups, int kColumns>
__device__ __forceinline__ void write(const TileArgs& a, const TilePlace& place,
                                      float (&d)[kGroups][kColumns / 2], int warpgroup) {
  const ConvShape& shape = a.conv.shape;
  const int warp = threadIdx.x % kWarpgroup / 32, lane = threadIdx.x % 32;
  const bool wide = shape.out % 8 == 0;
#pragma unroll
  for (int group = 0; group < kGroups; ++group)
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int cell = (warpgroup * kGroups + group) * 64 + warp * 16 + half * 8 + lane / 4;
      const int w = place.first[2] + cell % a.box[2], h = place.first[1] + cell / a.box[2] % a.box[1];
      const int t = place.first[0] + cell / a.box[2] / a.box[1];
      if (w >= shape.out_size[2] || h >= shape.out_size[1] || t >= shape.out_size[0]) continue;
      const std::int64_t at = (static_cast<std::int64_t>(t) * shape.out_size[1] + h) * shape.out_size[2] + w;
      Bf16* y = static_cast<Bf16*>(a.conv.y) + at * shape.out;
#pragma unroll
      for (int j = 0; j < kColumns / 32; ++j) {
        float v[8];
#pragma unroll
        for (int i = 0; i < 8; ++i) v[i] = d[group][16 * j + i / 2 * 4 + 2 * half + i % 2];
        store_channels(y, a.conv.bias, place.column + 32 * j + lane % 4 * 8, shape.out, v, wide);
      }
    }
}

template <int kGroups, int kColumns>
__device__ __forceinline__ void consume(typename Sizes<kGroups, kColumns>::Shared& s, const TileArgs& a,
                                        int warpgroup) {
  using S = Sizes<kGroups, kColumns>;
  const ConvShape& shape = a.conv.shape;
  const int steps = shape.kernel[0] * shape.kernel[1] * shape.kernel[2] * ((shape.in + kDepth - 1) / kDepth);
  const bool leader = threadIdx.x % 32 == 0;
  Ring<S::kStages> ring;
  for (int tile = blockIdx.x; tile < a.tiles; tile += gridDim.x) {
    float d[kGroups][kColumns / 2];
#pragma unroll
    for (int g = 0; g < kGroups; ++g)
#pragma unroll
      for (int i = 0; i < kColumns / 2; ++i) d[g][i] = 0;
    int last = -1;  // stage of the step that is still being multiplied
    for (int step = 0; step < steps; ++step) {
      barrier_wait(&s.full[ring.stage], ring.parity);
      const std::uint64_t w = k_major_operand(s.w[ring.stage]);
#pragma unroll
      for (int g = 0; g < kGroups; ++g) pin(d[g]);
      wgmma_fence();
#pragma unroll
      for (int g = 0; g < kGroups; ++g) {
        const std::uint64_t x =
            k_major_operand(s.x[ring.stage] + (warpgroup * kGroups + g) * 64 * kDepth * 2);
#pragma unroll
        for (int k = 0; k < kDepth / 16; ++k) product(d[g], advance(x, k * 32), advance(w, k * 32));
      }
      wgmma_commit();
      wgmma_wait<1>();
      if (last >= 0 && leader) barrier_arrive(&s.empty[last]);
      last = ring.stage;
      ring.next();
    }
    wgmma_wait<0>();
#pragma unroll
    for (int g = 0; g < kGroups; ++g) pin(d[g]);
    if (leader) barrier_arrive(&s.empty[last]);
    write<kGroups, kColumns>(a, TilePlace(a, tile, kColumns), d, warpgroup);
  }
}

template <int kGroups, int kColumns>
__global__ void __launch_bounds__(kThreads, 1) conv_tiles(const __grid_constant__ TileArgs a) {
#ifdef MAGI_SM90A
  using S = Sizes<kGroups, kColumns>;
  extern __shared__ unsigned char memory[];
  auto& s = *reinterpret_cast<typename S::Shared*>((reinterpret_cast<std::uintptr_t>(memory) + 1023) &
                                                   ~std::uintptr_t{1023});
  if (threadIdx.x == 0) {
    for (int i = 0; i < S::kStages; ++i) {
      barrier_init(&s.full[i], 1);
      barrier_init(&s.empty[i], kConsumers * kWarpgroup / 32);
    }
    fence_barrier_init();
  }
  __syncthreads();
  const int warpgroup = threadIdx.x / kWarpgroup;
  if (warpgroup == kConsumers) {
    give_registers<40>();
    if (threadIdx.x == kConsumers * kWarpgroup) produce<kGroups, kColumns>(s, a);
  } else {
    take_registers<232>();
    consume<kGroups, kColumns>(s, a, warpgroup);
  }
#endif
}

/// The box of `cells` cells, powers of two, that covers the output with the fewest tiles; among equals, the
/// one whose inputs are fewest.
void choose_box(const ConvShape& s, int cells, int (&box)[3]) {
  std::int64_t best_tiles = -1, best_inputs = 0;
  for (int t = 1; t <= cells; t *= 2)
    for (int h = 1; h * t <= cells; h *= 2) {
      const int sides[3] = {t, h, cells / t / h};
      std::int64_t tiles = 1, inputs = 1;
      for (int i = 0; i < 3; ++i) {
        tiles *= (s.out_size[i] + sides[i] - 1) / sides[i];
        inputs *= sides[i] + s.kernel[i] - 1;
      }
      if (best_tiles >= 0 && (tiles > best_tiles || (tiles == best_tiles && inputs >= best_inputs))) continue;
      best_tiles = tiles;
      best_inputs = inputs;
      std::copy(sides, sides + 3, box);
    }
}

template <int kGroups, int kColumns>
void launch(const ConvArgs& conv, cudaStream_t stream) {
  using S = Sizes<kGroups, kColumns>;
  const ConvShape& s = conv.shape;
  TileArgs a;
  a.conv = conv;
  choose_box(s, S::kCells, a.box);
  std::int64_t tiles = a.column_tiles = (s.out + kColumns - 1) / kColumns;
  for (int i = 0; i < 3; ++i) tiles *= a.boxes[i] = (s.out_size[i] + a.box[i] - 1) / a.box[i];
  require(tiles < (std::int64_t{1} << 31) - 1024, "conv: {} tiles are too many for the GPU's kernel", tiles);
  a.tiles = static_cast<int>(tiles);
  const std::int64_t x_sizes[] = {s.in, s.in_size[2], s.in_size[1], s.in_size[0]};
  const int x_box[] = {kDepth, a.box[2], a.box[1], a.box[0]};
  a.x = bf16_tensor_map(conv.x, x_sizes, x_box);
  const std::int64_t taps = std::int64_t{s.kernel[0]} * s.kernel[1] * s.kernel[2];
  const std::int64_t w_sizes[] = {s.in_pad, s.rows, taps};
  const int w_box[] = {kDepth, kColumns, 1};
  a.weight = bf16_tensor_map(conv.weight, w_sizes, w_box);
  launch_persistent(conv_tiles<kGroups, kColumns>, a, kThreads, S::kSharedBytes, stream, "conv");
}

}  // namespace

bool conv_sm90_takes(const ConvArgs& args, DType dtype) {
  const ConvShape& s = args.shape;
  if (dtype != DType::bf16 || s.transposed || s.in % 8 != 0 ||
      reinterpret_cast<std::uintptr_t>(args.x) % 16 != 0)
    return false;
  for (int i = 0; i < 3; ++i)
    if (s.stride[i] != 1 || s.dilation[i] != 1) return false;
  return on_hopper();
}

void conv_sm90(const ConvArgs& args, cudaStream_t stream) {
  if (args.shape.out > 128)
    launch<1, 256>(args, stream);
  else if (args.shape.out > 64)
    launch<2, 128>(args, stream);
  else
    launch<2, 64>(args, stream);
}

}  // namespace magi::cuda
