// SPDX-License-Identifier: Apache-2.0
// The text encoder's gated delta rule in chunks of 64 rows, all in f32 (the equations stand in
// ops/cpu/delta_net.cpp). With A the strictly lower triangular matrix of the chunk's system, u = (I + A)⁻¹w;
// the inverse and the scores of all chunks do not depend on the state, so a first kernel makes them, a block
// a chunk and head. The second walks through the chunks, a block a head and 64 columns of the values (columns
// of the state do not mix). Long prompts go in groups of chunks: scratch is bounded, the state waits in it.
#include "ops/cuda/cuda_ops.h"
#include "ops/cuda/elements.cuh"

namespace magi {
namespace cuda {
namespace {

constexpr int kChunk = 64;
constexpr int kColumns = 64;  ///< of the values, a block
constexpr int kThreads = 256;
constexpr int kPitch = kChunk + 4;  ///< of matrices of 64 columns in shared memory
constexpr int kMatrix = kChunk * kPitch;
constexpr std::int64_t kGroupChunks = 32;  ///< chunks between two launches

struct DeltaArgs {
  const void* qkv;  ///< element type T
  std::int64_t qkv_pitch;
  const void *decay_input, *beta_input;
  std::int64_t decay_pitch, beta_pitch;
  bool decay_is_bf16, beta_is_bf16;
  const float *a_log, *dt_bias;
  void* y;
  float* inverse;                ///< [chunks, heads, 64, 64]
  float* scores;                 ///< [chunks, heads, 64, 64]
  float* factors;                ///< [chunks, heads, 3, 64]: β, e^G, e^(G_last − G)
  float* state;                  ///< [heads, columns' blocks, key_pad, 64]
  std::int64_t first_row, rows;  ///< of this group; all rows
  int key_heads, value_heads, key_dim, value_dim;
  int key_pad;  ///< key_dim, up to a multiple of 64
  bool starts;  ///< the state is zero
};

__device__ __forceinline__ float number(const void* data, bool is_bf16, std::int64_t i) {
  return is_bf16 ? to_float(static_cast<const Bf16*>(data)[i]) : static_cast<const float*>(data)[i];
}

/// g = −e^{a_log}·softplus(x); bounded below, where e^g is zero anyway, so that sums stay finite.
__device__ __forceinline__ float log_decay(float x, float a_log) {
  const float softplus = x > 20.0f ? x : log1pf(expf(x));
  const float g = -expf(a_log) * softplus;
  return g < -1000.0f ? -1000.0f : g;
}

/// to[row][pitch] = x·rsqrt(Σx² + 1e-6)·scale for the chunk's rows, zeros elsewhere. A warp a row.
template <typename T>
__device__ void load_unit_rows(const T* x, std::int64_t x_pitch, int rows, int dim, int dim_pad, float scale,
                               float* to, int pitch) {
  const int lane = threadIdx.x % 32;
  for (int row = threadIdx.x / 32; row < kChunk; row += kThreads / 32) {
    float squares = 0;
    for (int c = lane; c < dim_pad; c += 32) {
      const float v = row < rows && c < dim ? to_float(x[row * x_pitch + c]) : 0.0f;
      to[row * pitch + c] = v;
      squares += v * v;
    }
    const float factor = scale / sqrtf(lanes_sum<32>(squares) + 1e-6f);
    for (int c = lane; c < dim_pad; c += 32) to[row * pitch + c] *= factor;
  }
}

/// acc[r][c] += Σ_k a[row(r)][k]·b[k][4·tx + c] for the thread's rows 4·ty… of each of kBlocks blocks of 64
/// rows; depth a multiple of 4, pitches too.
template <int kBlocks>
__device__ __forceinline__ void multiply(const float* a, int a_pitch, int a_block, const float* b, int depth,
                                         float (&acc)[4 * kBlocks][4]) {
  const int ty = threadIdx.x / 16, tx = threadIdx.x % 16;
#pragma unroll 2
  for (int k = 0; k < depth; k += 4) {
    float4 right[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) right[i] = *reinterpret_cast<const float4*>(b + (k + i) * kPitch + 4 * tx);
#pragma unroll
    for (int r = 0; r < 4 * kBlocks; ++r) {
      const float4 left =
          *reinterpret_cast<const float4*>(a + r / 4 * a_block + (4 * ty + r % 4) * a_pitch + k);
      const float l[4] = {left.x, left.y, left.z, left.w};
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        acc[r][0] += l[i] * right[i].x;
        acc[r][1] += l[i] * right[i].y;
        acc[r][2] += l[i] * right[i].z;
        acc[r][3] += l[i] * right[i].w;
      }
    }
  }
}

/// Floats of shared memory.
constexpr int prepare_floats(int key_pad) {
  return 2 * kChunk * (key_pad + 4) + key_pad * kPitch;
}
constexpr int walk_floats(int key_pad) {
  return prepare_floats(key_pad) + key_pad * kPitch + 3 * kMatrix + 3 * kChunk;
}

/// G, the running sums of log decay in the chunk (doubles: differences of large sums keep their digits), and
/// the factors made from it and β.
__device__ void chunk_factors(const DeltaArgs& a, std::int64_t first, int rows, int head, double* sums,
                              float* factors) {
  const int t = threadIdx.x;
  if (t < kChunk) {
    const auto input = [&](const void* data, bool is_bf16, std::int64_t pitch) {
      return number(data, is_bf16, (first + t) * pitch + head);
    };
    sums[t] = t < rows ? log_decay(input(a.decay_input, a.decay_is_bf16, a.decay_pitch) + a.dt_bias[head],
                                   a.a_log[head])
                       : 0.0f;
    factors[t] = t < rows ? sigmoid(input(a.beta_input, a.beta_is_bf16, a.beta_pitch)) : 0.0f;
  }
  __syncthreads();
  if (t == 0)
    for (int i = 1; i < kChunk; ++i) sums[i] += sums[i - 1];
  __syncthreads();
  if (t < kChunk) {
    factors[kChunk + t] = expf(static_cast<float>(sums[t]));
    factors[2 * kChunk + t] = expf(static_cast<float>(sums[kChunk - 1] - sums[t]));
  }
  __syncthreads();
}

/// to[i][t] = k[t][i]·weight[t] (weight null: 1).
__device__ __forceinline__ void transpose(const float* k, int k_pitch, const float* weight, int key_pad,
                                          float* to) {
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  for (int i = warp * 4 + lane / 8; i < key_pad; i += kThreads / 8)
    for (int t = lane % 8; t < kChunk; t += 8)
      to[i * kPitch + t] = k[t * k_pitch + i] * (weight ? weight[t] : 1.0f);
}

/// (I + A)⁻¹ → inverse [64, 64]; A strictly lower triangular in shared memory. Four lanes share a column by
/// rows mod 4 and keep it in registers.
__device__ __forceinline__ void invert(const float* system, float* inverse) {
  const int j = threadIdx.x / 4, part = threadIdx.x % 4;
  float column[kChunk / 4] = {};
#pragma unroll
  for (int t = 0; t < kChunk; ++t) {
    float sum = 0;
#pragma unroll
    for (int n = 0; 4 * n < t; ++n) sum += system[t * kPitch + 4 * n + part] * column[n];
    const float value = (t == j ? 1.0f : 0.0f) - lanes_sum<4>(sum);
    if (part == t % 4) column[t / 4] = value;
  }
#pragma unroll
  for (int n = 0; n < kChunk / 4; ++n) inverse[(4 * n + part) * kChunk + j] = column[n];
}

template <typename T>
__global__ void __launch_bounds__(kThreads) prepare(const DeltaArgs a) {
  extern __shared__ __align__(16) float memory[];
  __shared__ double sums[kChunk];
  const int pitch = a.key_pad + 4, chunk = static_cast<int>(blockIdx.x), head = static_cast<int>(blockIdx.y);
  float *q = memory, *k = q + kChunk * pitch, *k_columns = k + kChunk * pitch;
  const std::int64_t place = static_cast<std::int64_t>(chunk) * a.value_heads + head;
  const std::int64_t first = a.first_row + static_cast<std::int64_t>(chunk) * kChunk;
  const int rows = static_cast<int>(min(static_cast<std::int64_t>(kChunk), a.rows - first));
  float* factors = a.factors + place * 3 * kChunk;
  chunk_factors(a, first, rows, head, sums, factors);

  const int key_head = head * a.key_heads / a.value_heads;
  const T* data = static_cast<const T*>(a.qkv) + first * a.qkv_pitch + key_head * a.key_dim;
  load_unit_rows(data, a.qkv_pitch, rows, a.key_dim, a.key_pad, rsqrtf(static_cast<float>(a.key_dim)), q,
                 pitch);
  load_unit_rows(data + a.key_heads * a.key_dim, a.qkv_pitch, rows, a.key_dim, a.key_pad, 1.0f, k, pitch);
  __syncthreads();
  transpose(k, pitch, nullptr, a.key_pad, k_columns);
  __syncthreads();
  float acc[8][4] = {};  // q·k, then k·k
  multiply<2>(q, pitch, kChunk * pitch, k_columns, a.key_pad, acc);
  __syncthreads();
  float* system = q;  // q is done with
  const int ty = threadIdx.x / 16, tx = threadIdx.x % 16;
  for (int r = 0; r < 4; ++r)
    for (int c = 0; c < 4; ++c) {
      const int t = 4 * ty + r, j = 4 * tx + c;
      const float weight = j <= t ? expf(static_cast<float>(sums[t] - sums[j])) : 0.0f;
      a.scores[place * kChunk * kChunk + t * kChunk + j] = acc[r][c] * weight;
      system[t * kPitch + j] = j < t ? factors[t] * weight * acc[4 + r][c] : 0.0f;
    }
  __syncthreads();
  invert(system, a.inverse + place * kChunk * kChunk);
}

/// [64, 64] contiguous → rows of kPitch.
__device__ __forceinline__ void load_matrix(const float* from, float* to) {
  for (int i = threadIdx.x * 4; i < kChunk * kChunk; i += kThreads * 4)
    *reinterpret_cast<float4*>(to + i / kChunk * kPitch + i % kChunk) =
        *reinterpret_cast<const float4*>(from + i);
}

template <typename T>
__global__ void __launch_bounds__(kThreads, 1) walk(const DeltaArgs a, int chunks) {
  extern __shared__ __align__(16) float memory[];
  const int pitch = a.key_pad + 4, head = static_cast<int>(blockIdx.y);
  const int first_column = static_cast<int>(blockIdx.x) * kColumns;
  float *k = memory, *q = k + kChunk * pitch, *k_columns = q + kChunk * pitch,
        *state = k_columns + a.key_pad * kPitch;
  float *inverse = state + a.key_pad * kPitch, *scores = inverse + kMatrix, *u = scores + kMatrix;
  float* factors = u + kMatrix;
  const float *beta = factors, *decay = factors + kChunk, *tail = factors + 2 * kChunk;
  float* kept = a.state + (static_cast<std::int64_t>(head) * gridDim.x + blockIdx.x) * a.key_pad * kColumns;
  for (int i = threadIdx.x; i < a.key_pad * kColumns; i += kThreads)
    state[i / kColumns * kPitch + i % kColumns] = a.starts ? 0.0f : kept[i];

  const int key_head = head * a.key_heads / a.value_heads, keys = a.key_heads * a.key_dim;
  const int ty = threadIdx.x / 16, tx = threadIdx.x % 16;
  const int column = first_column + 4 * tx;  // the thread's first of 4
  for (int chunk = 0; chunk < chunks; ++chunk) {
    const std::int64_t place = static_cast<std::int64_t>(chunk) * a.value_heads + head;
    const std::int64_t first = a.first_row + static_cast<std::int64_t>(chunk) * kChunk;
    const int rows = static_cast<int>(min(static_cast<std::int64_t>(kChunk), a.rows - first));
    const T* data = static_cast<const T*>(a.qkv) + first * a.qkv_pitch;
    load_matrix(a.inverse + place * kChunk * kChunk, inverse);
    load_matrix(a.scores + place * kChunk * kChunk, scores);
    if (threadIdx.x < 3 * kChunk) factors[threadIdx.x] = a.factors[place * 3 * kChunk + threadIdx.x];
    const T* key = data + key_head * a.key_dim;
    load_unit_rows(key, a.qkv_pitch, rows, a.key_dim, a.key_pad, rsqrtf(static_cast<float>(a.key_dim)), q,
                   pitch);
    load_unit_rows(key + keys, a.qkv_pitch, rows, a.key_dim, a.key_pad, 1.0f, k, pitch);
    __syncthreads();
    transpose(k, pitch, tail, a.key_pad, k_columns);

    float through[8][4] = {};  // k·state, then q·state
    multiply<2>(k, pitch, kChunk * pitch, state, a.key_pad, through);
    const T* value = data + 2 * keys + head * a.value_dim;
    for (int r = 0; r < 4; ++r)
      for (int c = 0; c < 4; ++c) {
        const int t = 4 * ty + r;
        const bool inside = t < rows && column + c < a.value_dim;
        const float v = inside ? to_float(value[t * a.qkv_pitch + column + c]) : 0.0f;
        u[t * kPitch + 4 * tx + c] = inside ? beta[t] * (v - decay[t] * through[r][c]) : 0.0f;
      }
    __syncthreads();
    float solved[4][4] = {};
    multiply<1>(inverse, kPitch, 0, u, kChunk, solved);
    __syncthreads();
    for (int r = 0; r < 4; ++r)
      for (int c = 0; c < 4; ++c) u[(4 * ty + r) * kPitch + 4 * tx + c] = solved[r][c];
    __syncthreads();

    float out[4][4];
    for (int r = 0; r < 4; ++r)
      for (int c = 0; c < 4; ++c) out[r][c] = decay[4 * ty + r] * through[4 + r][c];
    multiply<1>(scores, kPitch, 0, u, kChunk, out);
    T* y = static_cast<T*>(a.y) + first * a.value_heads * a.value_dim + head * a.value_dim;
    for (int r = 0; r < 4; ++r)
      for (int c = 0; c < 4; ++c)
        if (4 * ty + r < rows && column + c < a.value_dim)
          y[static_cast<std::int64_t>(4 * ty + r) * a.value_heads * a.value_dim + column + c] =
              from_float<T>(out[r][c]);

    for (int block = 0; block < a.key_pad;
         block += kChunk) {  // a thread reads and writes its own elements of the state
      float next[4][4];
      for (int r = 0; r < 4; ++r)
        for (int c = 0; c < 4; ++c)
          next[r][c] = decay[kChunk - 1] * state[(block + 4 * ty + r) * kPitch + 4 * tx + c];
      multiply<1>(k_columns + block * kPitch, kPitch, 0, u, kChunk, next);
      for (int r = 0; r < 4; ++r)
        for (int c = 0; c < 4; ++c) state[(block + 4 * ty + r) * kPitch + 4 * tx + c] = next[r][c];
    }
    __syncthreads();
  }
  for (int i = threadIdx.x; i < a.key_pad * kColumns; i += kThreads)
    kept[i] = state[i / kColumns * kPitch + i % kColumns];
}

template <typename T>
void run_group(const DeltaArgs& a, int chunks, int column_blocks, cudaStream_t stream) {
  const auto shared = [](auto kernel, int floats) {
    const int bytes = floats * static_cast<int>(sizeof(float));
    check_cuda(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes),
               "gated_delta_rule");
    return bytes;
  };
  const auto heads = static_cast<unsigned>(a.value_heads);
  prepare<T><<<dim3(static_cast<unsigned>(chunks), heads), kThreads,
               shared(prepare<T>, prepare_floats(a.key_pad)), stream>>>(a);
  check_launch("gated_delta_rule");
  walk<T><<<dim3(static_cast<unsigned>(column_blocks), heads), kThreads,
            shared(walk<T>, walk_floats(a.key_pad)), stream>>>(a, chunks);
  check_launch("gated_delta_rule");
}

}  // namespace
}  // namespace cuda

namespace {

constexpr std::int64_t kAlignment = 256;

/// The parts of the scratch, in floats, and where they begin.
struct DeltaScratch {
  std::int64_t chunks, column_blocks, key_pad;
  std::int64_t inverse = 0, scores = 0, factors = 0, state = 0, end = 0;

  DeltaScratch(std::int64_t rows, std::int64_t value_heads, std::int64_t key_dim, std::int64_t value_dim)
      : chunks(std::min((rows + cuda::kChunk - 1) / cuda::kChunk, cuda::kGroupChunks)),
        column_blocks((value_dim + cuda::kColumns - 1) / cuda::kColumns),
        key_pad((key_dim + cuda::kChunk - 1) / cuda::kChunk * cuda::kChunk) {
    const auto take = [&](std::int64_t floats) {
      const std::int64_t begin = end;
      end += (floats + kAlignment - 1) / kAlignment * kAlignment;
      return begin;
    };
    inverse = take(chunks * value_heads * cuda::kChunk * cuda::kChunk);
    scores = take(chunks * value_heads * cuda::kChunk * cuda::kChunk);
    factors = take(chunks * value_heads * 3 * cuda::kChunk);
    state = take(value_heads * column_blocks * key_pad * cuda::kColumns);
  }
};

}  // namespace

std::int64_t CudaOps::delta_rule_scratch(std::int64_t rows, std::int64_t value_heads, std::int64_t key_dim,
                                         std::int64_t value_dim) const {
  return static_cast<std::int64_t>(sizeof(float)) * DeltaScratch(rows, value_heads, key_dim, value_dim).end;
}

void CudaOps::do_gated_delta_rule(const Tensor& qkv, const Tensor& decay_input, const Tensor& beta_input,
                                  const Tensor& a_log, const Tensor& dt_bias, std::int64_t key_heads,
                                  std::int64_t value_heads, std::int64_t key_dim, std::int64_t value_dim,
                                  Tensor& y) {
  const std::int64_t rows = qkv.dim(0);
  if (rows == 0) return;
  using cuda::kChunk;
  require(
      key_dim <= 128 && value_heads <= 65535 && value_dim < 65536,
      "gated_delta_rule: {} value heads of {} over keys of {}: the GPU's kernel takes keys of at most 128",
      value_heads, value_dim, key_dim);
  const DeltaScratch parts(rows, value_heads, key_dim, value_dim);
  const std::int64_t chunks = parts.chunks, column_blocks = parts.column_blocks;
  auto* const memory = static_cast<float*>(scratch());
  cuda::DeltaArgs args{};
  args.qkv = qkv.raw();
  args.qkv_pitch = qkv.pitch();
  args.decay_input = decay_input.raw();
  args.beta_input = beta_input.raw();
  args.decay_pitch = decay_input.pitch();
  args.beta_pitch = beta_input.pitch();
  args.decay_is_bf16 = decay_input.dtype() == DType::bf16;
  args.beta_is_bf16 = beta_input.dtype() == DType::bf16;
  args.a_log = a_log.data<float>();
  args.dt_bias = dt_bias.data<float>();
  args.y = y.raw();
  args.inverse = memory + parts.inverse;
  args.scores = memory + parts.scores;
  args.factors = memory + parts.factors;
  args.state = memory + parts.state;
  args.rows = rows;
  args.key_heads = static_cast<int>(key_heads);
  args.value_heads = static_cast<int>(value_heads);
  args.key_dim = static_cast<int>(key_dim);
  args.value_dim = static_cast<int>(value_dim);
  args.key_pad = static_cast<int>(parts.key_pad);
  for (args.first_row = 0; args.first_row < rows; args.first_row += chunks * kChunk) {
    args.starts = args.first_row == 0;
    const std::int64_t left = (rows - args.first_row + kChunk - 1) / kChunk;
    cuda::with_element(qkv.dtype(), [&]<typename T>(T) {
      cuda::run_group<T>(args, static_cast<int>(std::min(left, chunks)), static_cast<int>(column_blocks),
                         stream());
    });
  }
}

}  // namespace magi
