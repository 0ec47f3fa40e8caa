// SPDX-License-Identifier: Apache-2.0
// Convolutions of any shape on any architecture from sm_80. bf16: 128 cells × 128 channels a block, eight
// warps of 32 × 64 on mma.sync, inputs gathered by cp.async four stages deep. f32: 128 × 64, 8 × 8 results a
// thread.
#include "ops/cuda/conv_rows.cuh"

namespace magi::cuda {
namespace {

// ---------------------------------------------------------------- bf16

constexpr int kRows = 128, kColumns = 128, kDepth = 32, kStages = 4, kThreads = 256;

/// 8 elements of padding a row keep ldmatrix free of bank conflicts.
struct Stage {
  alignas(16) Bf16 x[kRows][kDepth + 8];
  alignas(16) Bf16 w[kColumns][kDepth + 8];
};

__device__ __forceinline__ std::uint32_t shared_at(const void* p) {
  return static_cast<std::uint32_t>(__cvta_generic_to_shared(p));
}
/// 16 bytes, or 16 zero bytes where `from` is null; `any` is any valid address.
__device__ __forceinline__ void copy16(Bf16* to, const Bf16* from, const Bf16* any) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(shared_at(to)), "l"(from ? from : any),
               "r"(from ? 16 : 0)
               : "memory");
}
__device__ __forceinline__ void load_matrices(std::uint32_t (&r)[4], const Bf16* row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(shared_at(row))
               : "memory");
}
__device__ __forceinline__ void mma(float (&d)[4], const std::uint32_t (&a)[4], const std::uint32_t* b) {
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, "
      "{%0,%1,%2,%3};"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}

/// A thread's share of the copies: 8 channels of two cells and of two weight rows.
struct Loader {
  const ConvArgs& a;
  const ConvRows& rows;
  const Bf16 *x, *weight;
  int row, piece, column;
  int origin[2][3];
  bool inside[2], wide;

  __device__ Loader(const ConvArgs& args, const ConvRows& r, int first_row, int first_column)
      : a(args),
        rows(r),
        x(static_cast<const Bf16*>(args.x)),
        weight(static_cast<const Bf16*>(args.weight)),
        row(threadIdx.x / 4),
        piece(threadIdx.x % 4 * 8),
        column(first_column + row),
        wide(args.shape.in % 8 == 0 && reinterpret_cast<std::uintptr_t>(args.x) % 16 == 0) {
    for (int i = 0; i < 2; ++i) {
      const int at = first_row + row + 64 * i;
      inside[i] = at < rows.count();
      rows.origin(inside[i] ? at : 0, origin[i]);
    }
  }

  __device__ void load(Stage& s, const ConvSteps<kDepth>& step) const {
    const int channel = step.channel + piece;
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const std::int64_t from = inside[i] && channel < a.shape.in ? rows.input(origin[i], step.by) : -1;
      Bf16* to = &s.x[row + 64 * i][piece];
      if (wide)
        copy16(to, from >= 0 ? x + from + channel : nullptr, weight);
      else
        for (int k = 0; k < 8; ++k)
          to[k] = from >= 0 && channel + k < a.shape.in ? x[from + channel + k] : __float2bfloat16(0.0f);
      const int n = column + 64 * i;
      const std::int64_t at =
          (static_cast<std::int64_t>(step.tap) * a.shape.rows + n) * a.shape.in_pad + channel;
      copy16(&s.w[row + 64 * i][piece], n < a.shape.rows ? weight + at : nullptr, weight);
    }
  }
};

/// acc += the stage's product for a warp's 32 cells × 64 channels.
__device__ __forceinline__ void multiply(const Stage& s, float (&acc)[2][8][4], int warp, int lane) {
#pragma unroll
  for (int k = 0; k < kDepth; k += 16) {
    std::uint32_t x[2][4];
#pragma unroll
    for (int m = 0; m < 2; ++m)
      load_matrices(x[m], &s.x[warp / 2 * 32 + m * 16 + lane % 16][k + lane / 16 * 8]);
#pragma unroll
    for (int n = 0; n < 4; ++n) {
      std::uint32_t w[4];
      load_matrices(w, &s.w[warp % 2 * 64 + n * 16 + lane / 16 * 8 + lane % 8][k + lane / 8 % 2 * 8]);
#pragma unroll
      for (int m = 0; m < 2; ++m) {
        mma(acc[m][2 * n], x[m], w);
        mma(acc[m][2 * n + 1], x[m], w + 2);
      }
    }
  }
}

__global__ void __launch_bounds__(kThreads, 2)
    conv_bf16(const __grid_constant__ ConvArgs a, int column_tiles) {
  extern __shared__ __align__(16) unsigned char memory[];
  Stage* stages = reinterpret_cast<Stage*>(memory);
  const ConvRows rows(a.shape, static_cast<int>(blockIdx.y));
  const int first_row = static_cast<int>(blockIdx.x) / column_tiles * kRows;
  const int first_column = static_cast<int>(blockIdx.x) % column_tiles * kColumns;
  if (first_row >= rows.count()) return;
  const Loader loader(a, rows, first_row, first_column);
  ConvSteps<kDepth> step(rows);
  const auto load_next = [&](int stage) {
    if (step.more) {
      loader.load(stages[stage], step);
      step.next();
    }
    asm volatile("cp.async.commit_group;" ::: "memory");
  };
  int left = 0;  // steps
  for (ConvSteps<kDepth> s(rows); s.more; s.next()) ++left;
  for (int stage = 0; stage < kStages - 1; ++stage) load_next(stage);

  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  float acc[2][8][4] = {};
  for (int i = 0; i < left; ++i) {
    asm volatile("cp.async.wait_group %0;" ::"n"(kStages - 2) : "memory");
    __syncthreads();  // the stage is there for everybody, and nobody reads the one to be overwritten
    load_next((i + kStages - 1) % kStages);
    multiply(stages[i % kStages], acc, warp, lane);
  }

  const bool wide = a.shape.out % 8 == 0;
#pragma unroll
  for (int m = 0; m < 2; ++m)
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int row = first_row + warp / 2 * 32 + m * 16 + half * 8 + lane / 4;
      if (row >= rows.count()) continue;
      Bf16* y = static_cast<Bf16*>(a.y) + rows.output(row);
#pragma unroll
      for (int group = 0; group < 2; ++group) {
        float v[8];
#pragma unroll
        for (int i = 0; i < 8; ++i) v[i] = acc[m][4 * group + i / 2][2 * half + i % 2];
        store_channels(y, a.bias, first_column + warp % 2 * 64 + group * 32 + lane % 4 * 8, a.shape.out, v,
                       wide);
      }
    }
}

// ---------------------------------------------------------------- f32

constexpr int kPlainColumns = 64, kPlainDepth = 16, kPlainThreads = 128;

struct PlainStage {
  alignas(16) float x[kPlainDepth][kRows];
  alignas(16) float w[kPlainDepth][kPlainColumns];
};

/// A thread's share: 16 channels of one cell; 4 channels of y in two rows of the weight. Through registers,
/// so that the reads of a step run under the product before it.
struct PlainLoader {
  const ConvArgs& a;
  const ConvRows& rows;
  const float *x, *weight;
  int first_column, origin[3];
  bool inside, wide;
  float4 cell[4], taps[2];

  __device__ PlainLoader(const ConvArgs& args, const ConvRows& r, int first_row, int column)
      : a(args),
        rows(r),
        x(static_cast<const float*>(args.x)),
        weight(static_cast<const float*>(args.weight)),
        first_column(column),
        wide(args.shape.in % 4 == 0 && reinterpret_cast<std::uintptr_t>(args.x) % 16 == 0) {
    const int at = first_row + static_cast<int>(threadIdx.x);
    inside = at < rows.count();
    rows.origin(inside ? at : 0, origin);
  }

  __device__ __forceinline__ void read(const ConvSteps<kPlainDepth>& step) {
    const std::int64_t from = inside ? rows.input(origin, step.by) : -1;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int channel = step.channel + 4 * i, left = from >= 0 ? a.shape.in - channel : 0;
      cell[i] = make_float4(0, 0, 0, 0);
      if (wide) {
        if (left > 0) cell[i] = *reinterpret_cast<const float4*>(x + from + channel);
      } else {
        if (left > 0) cell[i].x = x[from + channel];
        if (left > 1) cell[i].y = x[from + channel + 1];
        if (left > 2) cell[i].z = x[from + channel + 2];
        if (left > 3) cell[i].w = x[from + channel + 3];
      }
    }
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const int n = first_column + column();
      const std::int64_t k = static_cast<std::int64_t>(step.tap) * a.shape.in_pad + step.channel + depth(i);
      taps[i] = n < a.shape.rows ? *reinterpret_cast<const float4*>(weight + k * a.shape.rows + n)
                                 : make_float4(0, 0, 0, 0);
    }
  }
  __device__ __forceinline__ void write(PlainStage& s) const {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      s.x[4 * i][threadIdx.x] = cell[i].x;
      s.x[4 * i + 1][threadIdx.x] = cell[i].y;
      s.x[4 * i + 2][threadIdx.x] = cell[i].z;
      s.x[4 * i + 3][threadIdx.x] = cell[i].w;
    }
#pragma unroll
    for (int i = 0; i < 2; ++i) *reinterpret_cast<float4*>(&s.w[depth(i)][column()]) = taps[i];
  }

 private:
  __device__ __forceinline__ static int column() {
    return threadIdx.x % 16 * 4;
  }
  __device__ __forceinline__ static int depth(int i) {
    return threadIdx.x / 16 + 8 * i;
  }
};

/// Columns of a thread: 4 from 4·n and 4 from 32 + 4·n.
__device__ __forceinline__ void multiply(const PlainStage& s, float (&acc)[8][8], int m, int n) {
#pragma unroll
  for (int k = 0; k < kPlainDepth; ++k) {
    float x[8], w[8];
    *reinterpret_cast<float4*>(x) = *reinterpret_cast<const float4*>(&s.x[k][8 * m]);
    *reinterpret_cast<float4*>(x + 4) = *reinterpret_cast<const float4*>(&s.x[k][8 * m + 4]);
    *reinterpret_cast<float4*>(w) = *reinterpret_cast<const float4*>(&s.w[k][4 * n]);
    *reinterpret_cast<float4*>(w + 4) = *reinterpret_cast<const float4*>(&s.w[k][32 + 4 * n]);
#pragma unroll
    for (int i = 0; i < 8; ++i)
#pragma unroll
      for (int j = 0; j < 8; ++j) acc[i][j] += x[i] * w[j];
  }
}

__global__ void __launch_bounds__(kPlainThreads)
    conv_f32(const __grid_constant__ ConvArgs a, int column_tiles) {
  __shared__ PlainStage stages[2];
  const ConvRows rows(a.shape, static_cast<int>(blockIdx.y));
  const int first_row = static_cast<int>(blockIdx.x) / column_tiles * kRows;
  const int first_column = static_cast<int>(blockIdx.x) % column_tiles * kPlainColumns;
  if (first_row >= rows.count()) return;
  PlainLoader loader(a, rows, first_row, first_column);
  const int m = threadIdx.x / 8, n = threadIdx.x % 8;
  float acc[8][8] = {};
  ConvSteps<kPlainDepth> step(rows);
  if (step.more) {
    loader.read(step);
    loader.write(stages[0]);
  }
  __syncthreads();
  for (int current = 0; step.more; current ^= 1) {
    step.next();
    if (step.more) loader.read(step);
    multiply(stages[current], acc, m, n);
    if (step.more) loader.write(stages[current ^ 1]);
    __syncthreads();
  }
  const bool wide = a.shape.out % 4 == 0;
#pragma unroll
  for (int i = 0; i < 8; ++i) {
    const int row = first_row + 8 * m + i;
    if (row >= rows.count()) break;
    float* y = static_cast<float*>(a.y) + rows.output(row);
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const float v[4] = {acc[i][4 * half], acc[i][4 * half + 1], acc[i][4 * half + 2], acc[i][4 * half + 3]};
      store_channels(y, a.bias, first_column + 32 * half + 4 * n, a.shape.out, v, wide);
    }
  }
}

// ---------------------------------------------------------------- depthwise

template <typename T>
__global__ void conv_channels(const __grid_constant__ ConvArgs a) {
  const ConvRows rows(a.shape, 0);
  const std::int64_t i = static_cast<std::int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  const auto row = static_cast<int>(i / a.shape.out), c = static_cast<int>(i % a.shape.out);
  if (row >= rows.count()) return;
  int origin[3];
  rows.origin(row, origin);
  float total = 0;
  for (ConvSteps<1 << 30> step(rows); step.more; step.next()) {
    const std::int64_t from = rows.input(origin, step.by);
    if (from >= 0)
      total += to_float(static_cast<const T*>(a.x)[from + c]) *
               static_cast<const float*>(a.weight)[static_cast<std::int64_t>(step.tap) * a.shape.out + c];
  }
  static_cast<T*>(a.y)[i] = from_float<T>(a.bias ? total + a.bias[c] : total);
}

template <typename Kernel>
void launch_tiles(Kernel kernel, const ConvArgs& a, int columns, int threads, std::size_t shared,
                  cudaStream_t stream) {
  const ConvShape& s = a.shape;
  const int phases = s.transposed ? s.stride[2] : 1;
  const std::int64_t width = (s.out_size[2] + phases - 1) / phases;
  const std::int64_t tiles =
      (static_cast<std::int64_t>(s.out_size[0]) * s.out_size[1] * width + kRows - 1) / kRows;
  const int column_tiles = (s.out + columns - 1) / columns;
  require(phases <= 65535 && tiles * column_tiles < (std::int64_t{1} << 31),
          "conv: stride {} or {} tiles are too many for the GPU's kernel", phases, tiles * column_tiles);
  check_cuda(
      cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(shared)),
      "conv");
  const dim3 grid(static_cast<unsigned>(tiles * column_tiles), static_cast<unsigned>(phases));
  kernel<<<grid, threads, shared, stream>>>(a, column_tiles);
  check_launch("conv");
}

}  // namespace

void conv_portable(const ConvArgs& args, DType dtype, cudaStream_t stream) {
  if (dtype == DType::bf16)
    launch_tiles(conv_bf16, args, kColumns, kThreads, kStages * sizeof(Stage), stream);
  else
    launch_tiles(conv_f32, args, kPlainColumns, kPlainThreads, 0, stream);
}

void conv_depthwise(const ConvArgs& args, DType dtype, cudaStream_t stream) {
  const ConvShape& s = args.shape;
  const std::int64_t count = static_cast<std::int64_t>(s.out_size[0]) * s.out_size[1] * s.out_size[2] * s.out;
  with_element(dtype, [&]<typename T>(T) {
    conv_channels<T><<<blocks_for(count, kThreads), kThreads, 0, stream>>>(args);
  });
  check_launch("conv");
}

}  // namespace magi::cuda
