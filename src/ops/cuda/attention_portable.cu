// SPDX-License-Identifier: Apache-2.0
// Attention without Hopper's instructions: on the tensor cores of any device since compute capability 8.0
// (after FlashAttention-2, Dao 2023), heads padded with zeros to the next tile, and in plain f32 arithmetic
// for every dtype and head size.
#include <cuda_bf16.h>

#include <type_traits>

#include "ops/cuda/attention_launch.cuh"
#include "ops/cuda/attention_row.cuh"

namespace magi::cuda {
namespace {

// ---------------------------------------------------------------- tensor cores, bf16

constexpr int kTile = 64;  ///< query rows and keys a tile; 4 warps own 16 rows each

__device__ __forceinline__ void load_matrix(std::uint32_t (&r)[4], std::uint32_t row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(row)
               : "memory");
}
__device__ __forceinline__ void load_matrix_transposed(std::uint32_t (&r)[4], std::uint32_t row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(row)
               : "memory");
}

/// d[16×8] += A[16×16]·B[16×8].
__device__ __forceinline__ void multiply(float* d, const std::uint32_t* a, std::uint32_t b0,
                                         std::uint32_t b1) {
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
      "{%0, %1, %2, %3};"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

/// A tile [kTile, kDim] in shared memory; 16-byte pieces are swizzled so that ldmatrix meets no bank twice.
template <int kDim>
struct SharedTile {
  alignas(128) __nv_bfloat16 data[kTile][kDim];

  __device__ __forceinline__ std::uint32_t piece(int row, int column_piece) const {
    return sm90::shared_address(&data[row][(column_piece ^ (row & 7)) * 8]);
  }
  /// Starts to copy `rows` rows of `dim` elements, `pitch` apart; the rest of the tile becomes zeros.
  __device__ __forceinline__ void copy(const __nv_bfloat16* from, std::int64_t pitch, int rows,
                                       int dim) const {
    constexpr int kPieces = kDim / 8;
    for (int i = threadIdx.x; i < kTile * kPieces; i += blockDim.x) {
      const int row = i / kPieces, column = i % kPieces;
      const bool real = row < rows && column * 8 < dim;
      asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(piece(row, column)),
                   "l"(real ? from + row * pitch + column * 8 : from), "r"(real ? 16 : 0)
                   : "memory");
    }
  }
};

__device__ __forceinline__ void copies_commit() {
  asm volatile("cp.async.commit_group;" ::: "memory");
}
template <int kPending>
__device__ __forceinline__ void copies_wait() {
  asm volatile("cp.async.wait_group %0;" ::"n"(kPending) : "memory");
}

template <int kDim>
struct TensorShared {
  SharedTile<kDim> q, k, v;
};

template <int kDim>
__device__ __forceinline__ void scores(float (&s)[kTile / 2], const TensorShared<kDim>& shared) {
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
#pragma unroll
  for (int i = 0; i < kTile / 2; ++i) s[i] = 0.f;
#pragma unroll
  for (int step = 0; step < kDim / 16; ++step) {
    std::uint32_t a[4];
    load_matrix(a, shared.q.piece(16 * warp + lane % 16, 2 * step + lane / 16));
#pragma unroll
    for (int pair = 0; pair < kTile / 16; ++pair) {
      std::uint32_t b[4];
      load_matrix(b, shared.k.piece(16 * pair + lane / 16 * 8 + lane % 8, 2 * step + lane / 8 % 2));
      multiply(&s[8 * pair], a, b[0], b[1]);
      multiply(&s[8 * pair + 4], a, b[2], b[3]);
    }
  }
}

template <int kDim>
__device__ __forceinline__ void add_values(float (&o)[kDim / 2], const std::uint32_t (&weights)[kTile / 4],
                                           const TensorShared<kDim>& shared) {
  const int lane = threadIdx.x % 32;
#pragma unroll
  for (int step = 0; step < kTile / 16; ++step) {
#pragma unroll
    for (int pair = 0; pair < kDim / 16; ++pair) {
      std::uint32_t b[4];
      load_matrix_transposed(b,
                             shared.v.piece(16 * step + lane / 8 % 2 * 8 + lane % 8, 2 * pair + lane / 16));
      multiply(&o[8 * pair], &weights[4 * step], b[0], b[1]);
      multiply(&o[8 * pair + 4], &weights[4 * step], b[2], b[3]);
    }
  }
}

/// Scores of keys after the row become −∞; `first_key` is the tile's first, `row` the thread's upper row.
__device__ __forceinline__ void mask_later(float (&s)[kTile / 2], int first_key, int row) {
#pragma unroll
  for (int i = 0; i < kTile / 2; ++i) {
    const int key = first_key + i / 4 * 8 + i % 2 + 2 * (threadIdx.x % 4);
    if (key > row + i % 4 / 2 * 8) s[i] = -INFINITY;
  }
}

template <int kDim, template <int, int> class WalkOf>
__global__ void __launch_bounds__(128) tensor_kernel(const __grid_constant__ AttentionParams p) {
  using Walk = WalkOf<kTile, kTile>;
  extern __shared__ __align__(128) unsigned char attention_memory[];
  auto& shared = *reinterpret_cast<TensorShared<kDim>*>(attention_memory);
  const AttentionTile tile = attention_tile(p, blockIdx.x);
  const int query = Walk::query_row(p, tile), end = Walk::query_end(p, tile);
  if (query >= end) return;
  const int row = query + 16 * (threadIdx.x / 32) + threadIdx.x % 32 / 4;
  const int dim = p.head_dim;
  const auto* queries = static_cast<const __nv_bfloat16*>(p.q);
  const auto* keys =
      static_cast<const __nv_bfloat16*>(p.kv) + tile.sample->first_key * p.kv_pitch + tile.kv_head * dim;
  const auto* values = keys + p.kv_heads * dim;
  Walk walk(p, tile);

  shared.q.copy(queries + (tile.sample->first + query) * p.q_pitch + tile.head * dim, p.q_pitch, end - query,
                dim);
  shared.k.copy(keys + walk.row * p.kv_pitch, p.kv_pitch, walk.remaining, dim);
  copies_commit();

  float o[kDim / 2] = {};
  RunningSoftmax state = {{-INFINITY, -INFINITY}, {0.f, 0.f}};
  for (bool more = true; more;) {
    shared.v.copy(values + walk.row * p.kv_pitch, p.kv_pitch, walk.remaining, dim);
    copies_commit();
    copies_wait<1>();
    __syncthreads();
    float s[kTile / 2];
    scores(s, shared);
    __syncthreads();
    const int key = walk.row, count = walk.remaining;
    more = !walk.last();
    if (more) {
      walk.next();
      shared.k.copy(keys + walk.row * p.kv_pitch, p.kv_pitch, walk.remaining, dim);
    }
    copies_commit();

    if (count < kTile) attention_mask(s, count);
    if (p.causal && key + kTile > query) mask_later(s, key, row);
    float alpha[2];
    attention_softmax(s, state, p.scale_log2, alpha);
    attention_rescale(o, alpha);
    std::uint32_t weights[kTile / 4];
    attention_round(weights, s);

    copies_wait<1>();
    __syncthreads();
    add_values(o, weights, shared);
    __syncthreads();
  }
  attention_store<Walk, false>(p, tile, query + 16 * (threadIdx.x / 32), end, o, state);
}

/// For attention_launch.cuh.
template <int kDim, template <int, int> class WalkOf>
struct TensorAttention {
  static constexpr int kQueries = kTile;
  static AttentionSample sample(const AttentionArgs&, RowRange, RowRange) { return {}; }
  static void launch(const AttentionParams& params, cudaStream_t stream) {
    constexpr int kShared = sizeof(TensorShared<kDim>);
    check_cuda(cudaFuncSetAttribute(tensor_kernel<kDim, WalkOf>, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                    kShared),
               "attention");
    tensor_kernel<kDim, WalkOf><<<params.tiles, 128, kShared, stream>>>(params);
    check_launch("attention");
  }
};

// ---------------------------------------------------------------- plain f32 arithmetic

constexpr int kPlainRows = 8;   ///< query rows a block, one a warp
constexpr int kPlainKeys = 32;  ///< keys a tile, one a lane
constexpr int kPlainMaxDim = 1024;

__device__ __forceinline__ float widen(float x) {
  return x;
}
__device__ __forceinline__ float widen(__nv_bfloat16 x) {
  return __bfloat162float(x);
}

/// Lane l scores key l of each tile; then it gathers channels l, l + 32, … of the output.
template <class T, template <int, int> class WalkOf>
__global__ void __launch_bounds__(32 * kPlainRows) plain_kernel(const __grid_constant__ AttentionParams p) {
  using Walk = WalkOf<kPlainRows, kPlainKeys>;
  __shared__ float queries[kPlainRows][kPlainMaxDim];
  const AttentionTile tile = attention_tile(p, blockIdx.x);
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, dim = p.head_dim;
  const int row = Walk::query_row(p, tile) + warp;
  if (row >= Walk::query_end(p, tile)) return;
  const std::int64_t packed_row = tile.sample->first + row;
  const T* keys = static_cast<const T*>(p.kv) + tile.sample->first_key * p.kv_pitch +
                  static_cast<std::int64_t>(tile.kv_head) * dim;
  const T* values = keys + static_cast<std::int64_t>(p.kv_heads) * dim;
  float* q = queries[warp];
  for (int d = lane; d < dim; d += 32)
    q[d] = widen(static_cast<const T*>(p.q)[packed_row * p.q_pitch + tile.head * dim + d]);
  __syncwarp();

  float o[kPlainMaxDim / 32] = {};
  float top = -INFINITY, sum = 0.f;
  Walk walk(p, tile);
  for (bool more = true; more;) {
    const int count = min(walk.remaining, kPlainKeys);
    float s = -INFINITY;
    if (lane < count && !(p.causal && walk.row + lane > row)) {
      const T* k = keys + static_cast<std::int64_t>(walk.row + lane) * p.kv_pitch;
      s = 0.f;
      for (int d = 0; d < dim; ++d) s = fmaf(q[d], widen(k[d]), s);
    }
    float high = s;
    for (int step = 16; step > 0; step /= 2) high = fmaxf(high, __shfl_xor_sync(~0u, high, step));
    high = fmaxf(high, top);
    if (high > -INFINITY) {  // else every key so far was masked
      const float alpha = exp2f((top - high) * p.scale_log2), weight = exp2f((s - high) * p.scale_log2);
      top = high;
      sum = fmaf(sum, alpha, weight);
#pragma unroll
      for (float& x : o) x *= alpha;
      for (int j = 0; j < count; ++j) {
        const float w = __shfl_sync(~0u, weight, j);
        const T* v = values + static_cast<std::int64_t>(walk.row + j) * p.kv_pitch;
#pragma unroll
        for (int i = 0; i < kPlainMaxDim / 32; ++i) {
          if (lane + 32 * i < dim) o[i] = fmaf(w, widen(v[lane + 32 * i]), o[i]);
        }
      }
    }
    more = !walk.last();
    if (more) walk.next();
  }

  for (int step = 16; step > 0; step /= 2) sum += __shfl_xor_sync(~0u, sum, step);
  if constexpr (Walk::kPartial) {
    float* to = attention_partial(p, row, Walk::index(p, tile), tile.head);
#pragma unroll
    for (int i = 0; i < kPlainMaxDim / 32; ++i)
      if (lane + 32 * i < dim) to[lane + 32 * i] = o[i];
    if (lane == 0) to[dim] = top * p.scale_log2, to[dim + 1] = sum;
    return;
  }
  const float factor = attention_row_factor(p, packed_row, tile.head, top, sum);
  T* to = attention_result<T>(p, packed_row) + tile.head * dim;
#pragma unroll
  for (int i = 0; i < kPlainMaxDim / 32; ++i) {
    const int d = lane + 32 * i;
    if (d >= dim) break;
    float x = o[i] * factor;
    if (p.gate_channels) x *= attention_gate(p, packed_row * p.gate_pitch + tile.head * dim + d);
    if constexpr (std::is_same_v<T, float>) {
      to[d] = x;
    } else {
      to[d] = __float2bfloat16(x);
    }
  }
}

/// For attention_launch.cuh.
template <class T, template <int, int> class WalkOf>
struct PlainAttention {
  static constexpr int kQueries = kPlainRows;
  static AttentionSample sample(const AttentionArgs&, RowRange, RowRange) { return {}; }
  static void launch(const AttentionParams& params, cudaStream_t stream) {
    plain_kernel<T, WalkOf><<<params.tiles, 32 * kPlainRows, 0, stream>>>(params);
    check_launch("attention");
  }
};

// ---------------------------------------------------------------- choice

bool tensor_cores_take(const AttentionArgs& args) {
  const auto aligned = [](const void* p, std::uintptr_t bytes) {
    return reinterpret_cast<std::uintptr_t>(p) % bytes == 0;
  };
  return args.is_bf16 && args.head_dim % 8 == 0 && args.head_dim <= 256 && args.q_pitch % 8 == 0 &&
         aligned(args.q, 16) && args.kv_pitch % 8 == 0 && aligned(args.kv, 16) && args.out_pitch % 8 == 0 &&
         results_aligned(args, 16);
}

/// Calls `launch` with the kernel that walks so and takes these arguments.
template <template <int, int> class WalkOf, class Launch>
void choose(const AttentionArgs& args, const Launch& launch) {
  require(args.kv_heads > 0 && args.heads % args.kv_heads == 0, "attention: {} query heads over {} kv heads",
          args.heads, args.kv_heads);
  require(args.head_dim > 0 && args.head_dim <= kPlainMaxDim,
          "attention: a head size of {}; at most {} is possible", args.head_dim, kPlainMaxDim);
  require(args.scale > 0, "attention: a scale of {}; it must be positive", args.scale);
  if (!tensor_cores_take(args)) {
    args.is_bf16 ? launch(PlainAttention<__nv_bfloat16, WalkOf>{}) : launch(PlainAttention<float, WalkOf>{});
  } else if (args.head_dim <= 64) {
    launch(TensorAttention<64, WalkOf>{});
  } else if (args.head_dim <= 128) {
    launch(TensorAttention<128, WalkOf>{});
  } else {
    launch(TensorAttention<256, WalkOf>{});
  }
}

}  // namespace

void attention_portable(const AttentionArgs& args, cudaStream_t stream) {
  choose<FullWalk>(args, [&](auto kernel) { attention_launch<decltype(kernel)>(args, stream); });
}

void window_attention_portable(const AttentionArgs& args, const WindowOptions& window, cudaStream_t stream) {
  choose<WindowWalk>(args,
                     [&](auto kernel) { window_attention_launch<decltype(kernel)>(args, window, stream); });
}

void attention_partials_portable(const AttentionArgs& args, std::span<const RowRange> parts, float* partials,
                                 cudaStream_t stream) {
  choose<PartWalk>(
      args, [&](auto kernel) { attention_partials_launch<decltype(kernel)>(args, parts, partials, stream); });
}

}  // namespace magi::cuda
