// SPDX-License-Identifier: Apache-2.0
// mHC sites (model.md section 4) of any size: a block takes a row. mhc_sm90.cu has the release's size.
#include "ops/cuda/cuda_ops.h"
#include "ops/cuda/mhc.h"
#include "ops/cuda/mhc_row.cuh"
#include "ops/cuda/rows.cuh"

namespace magi {
namespace {

using namespace cuda;

constexpr int kThreads = 256;
constexpr int kMaxColumns = kThreads;  ///< 2S + S², one thread each at least
constexpr int kMaxShared = 200 * 1024;

/// Row of `streams` ← h_res·streams + h_post ⊗ branch, also as f32 into `row` [S·D].
template <typename T>
__device__ void apply_branch(const MhcArgs& a, std::int64_t n, float* row) {
  T* streams = static_cast<T*>(a.streams) + n * a.streams_count * a.width;
  const T* branch = static_cast<const T*>(a.branch) + n * a.branch_pitch;
  const T* post = static_cast<const T*>(a.post) + n * a.streams_count;
  const T* res = static_cast<const T*>(a.res) + n * a.streams_count * a.streams_count;
  const int s = a.streams_count;
  for (int d = threadIdx.x; d < a.width; d += kThreads) {
    const float added = to_float(branch[d]);
    for (int from = 0; from < s; ++from) row[from * a.width + d] = to_float(streams[from * a.width + d]);
    for (int to = 0; to < s; ++to) {
      float mixed = 0;
      for (int from = 0; from < s; ++from)
        mixed = fmaf(to_float(res[to * s + from]), row[from * a.width + d], mixed);
      streams[to * a.width + d] = from_float<T>(fmaf(to_float(post[to]), added, mixed));
    }
    for (int from = 0; from < s; ++from) row[from * a.width + d] = to_float(streams[from * a.width + d]);
  }
}

template <typename T>
__global__ __launch_bounds__(kThreads) void finish_kernel(const __grid_constant__ MhcArgs a) {
  extern __shared__ float shared[];
  apply_branch<T>(a, blockIdx.x, shared);
}

/// Shared memory: the row in f32, then h.
template <typename T>
__global__ __launch_bounds__(kThreads) void site_kernel(const __grid_constant__ MhcArgs a,
                                                        const __grid_constant__ RowGroups norm_groups,
                                                        const __grid_constant__ RowGroups pre_groups) {
  extern __shared__ float shared[];
  const std::int64_t n = blockIdx.x;
  const int s = a.streams_count, width = s * a.width, columns = 2 * s + s * s;
  float *row = shared, *h = shared + width;
  T* streams = static_cast<T*>(a.streams) + n * width;
  if (a.branch) {
    apply_branch<T>(a, n, row);
  } else {
    for (int i = threadIdx.x; i < width; i += kThreads) row[i] = to_float(streams[i]);
  }
  __syncthreads();
  float sum = 0;
  for (int i = threadIdx.x; i < width; i += kThreads) sum = fmaf(row[i], row[i], sum);
  const float scale = 1.0f / sqrtf(block_sum(sum) / static_cast<float>(width) + a.norm_eps);

  // h = RMSNorm(row)·phi: a thread takes a column and every `parts`-th k, in blocks that keep sums short.
  const float* weight = a.norm_weight + static_cast<std::int64_t>(norm_groups.of(n)) * width;
  const int parts = kThreads / columns, column = threadIdx.x % columns, part = threadIdx.x / columns;
  float total = 0;
  if (part < parts) {
    float block = 0;
    int in_block = 0;
    for (int k = part; k < width; k += parts) {
      block = fmaf(row[k] * scale * (__ldg(weight + k) + 1.0f),
                   __ldg(a.phi + static_cast<std::int64_t>(k) * columns + column), block);
      if (++in_block == 32) {
        total += block;
        block = 0;
        in_block = 0;
      }
    }
    total += block;
  }
  __shared__ float partial[kThreads];
  partial[threadIdx.x] = total;
  __syncthreads();
  if (threadIdx.x < columns) {
    float value = 0;
    for (int i = 0; i < parts; ++i) value += partial[i * columns + threadIdx.x];
    h[threadIdx.x] = value;
  }
  __syncthreads();

  // The coefficients: one thread; S is small.
  if (threadIdx.x == 0) {
    const float factor = 1.0f / sqrtf(static_cast<float>(width));
    for (int i = 0; i < columns; ++i)
      h[i] = a.alpha[i < s ? 0 : i < 2 * s ? 1 : 2] * factor * h[i] + a.bias[i];
    for (int i = 0; i < s; ++i) {
      const T pre = from_float<T>(sigmoid(h[i]));
      static_cast<T*>(a.pre)[n * s + i] = pre;
      h[i] = to_float(pre);
      static_cast<T*>(a.post)[n * s + i] = from_float<T>(2.0f * sigmoid(h[s + i]));
    }
    sinkhorn(h + 2 * s, s);
    for (int i = 0; i < s * s; ++i) static_cast<T*>(a.res)[n * s * s + i] = from_float<T>(h[2 * s + i]);
  }
  __syncthreads();

  sum = 0;
  for (int d = threadIdx.x; d < a.width; d += kThreads) {
    float mixed = 0;
    for (int from = 0; from < s; ++from) mixed = fmaf(h[from], row[from * a.width + d], mixed);
    mixed = to_float(from_float<T>(mixed));
    row[d] = mixed;  // this thread's column alone
    sum = fmaf(mixed, mixed, sum);
  }
  const float pre_scale = 1.0f / sqrtf(block_sum(sum) / static_cast<float>(a.width) + a.pre_eps);
  const float* pre_weight = a.pre_weight + static_cast<std::int64_t>(pre_groups.of(n)) * a.width;
  for (int d = threadIdx.x; d < a.width; d += kThreads)
    static_cast<T*>(a.out)[n * a.width + d] =
        from_float<T>(row[d] * pre_scale * (__ldg(pre_weight + d) + 1.0f));
}

template <typename... Kernel, typename... Args>
void launch(void (*kernel)(Kernel...), std::int64_t rows, std::size_t shared, cudaStream_t stream,
            const char* what, const Args&... args) {
  require(shared <= kMaxShared, "{}: streams of {} KiB a row are too much for the GPU", what, shared >> 10);
  check_cuda(
      cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(shared)),
      what);
  kernel<<<static_cast<unsigned>(rows), kThreads, shared, stream>>>(args...);
  check_launch(what);
}

}  // namespace

std::int64_t CudaOps::mhc_scratch(const Tensor& streams, const MhcWeight& w) const {
  return mhc_sm90_scratch(streams.dtype(), streams.shape(), w.norm.groups);
}

void CudaOps::do_mhc_site(Tensor& streams, const Tensor& branch, MhcCoefficients& state, const MhcWeight& w,
                          const NormWeight& pre_norm, const Segments& segments, Tensor& n) {
  if (streams.numel() == 0) return;
  const std::int64_t s = streams.dim(1), d = streams.dim(2), columns = 2 * s + s * s;
  require(columns <= kMaxColumns, "mhc_site: {} streams are too many for the GPU", s);
  MhcArgs args;
  args.streams = streams.raw();
  args.rows = streams.dim(0);
  args.streams_count = static_cast<int>(s);
  args.width = static_cast<int>(d);
  if (branch.defined()) {
    args.branch = branch.raw();
    args.branch_pitch = branch.pitch();
  }
  args.pre = state.pre.raw();
  args.post = state.post.raw();
  args.res = state.res.raw();
  args.norm_weight = elements<float>(w.norm.weight);
  args.norm_eps = w.norm.eps;
  args.phi = elements<float>(w.phi);
  args.alpha = elements<float>(w.alpha);
  args.bias = elements<float>(w.bias);
  args.pre_weight = elements<float>(pre_norm.weight);
  args.pre_eps = pre_norm.eps;
  args.out = n.raw();
  const RowGroups norm_groups = row_groups(segments, w.norm.groups, args.rows);
  const RowGroups pre_groups = row_groups(segments, pre_norm.groups, args.rows);
  if (mhc_sm90_takes(args, streams.dtype()))
    return mhc_site_sm90(args, w.norm.groups, pre_norm.groups,
                         w.norm.groups > pre_norm.groups ? norm_groups : pre_groups, scratch(), stream());
  const std::size_t shared = sizeof(float) * static_cast<std::size_t>(s * d + columns);
  with_element(streams.dtype(), [&]<typename T>(T) {
    launch(site_kernel<T>, args.rows, shared, stream(), "mhc_site", args, norm_groups, pre_groups);
  });
}

void CudaOps::do_mhc_finish(Tensor& streams, const Tensor& branch, const MhcCoefficients& state) {
  if (streams.numel() == 0) return;
  MhcArgs args;
  args.streams = streams.raw();
  args.rows = streams.dim(0);
  args.streams_count = static_cast<int>(streams.dim(1));
  args.width = static_cast<int>(streams.dim(2));
  args.branch = branch.raw();
  args.branch_pitch = branch.pitch();
  args.post = const_cast<void*>(state.post.raw());
  args.res = const_cast<void*>(state.res.raw());
  const std::size_t shared = sizeof(float) * static_cast<std::size_t>(args.streams_count) * args.width;
  with_element(streams.dtype(), [&]<typename T>(T) {
    launch(finish_kernel<T>, args.rows, shared, stream(), "mhc_finish", args);
  });
}

}  // namespace magi
