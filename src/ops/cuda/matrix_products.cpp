// SPDX-License-Identifier: Apache-2.0
#include "ops/cuda/matrix_products.h"

#include <algorithm>
#include <array>

#include "ops/cuda/check.h"

namespace magi::cuda {
namespace {

constexpr std::size_t kWorkspace = std::size_t{32} << 20;
constexpr std::uintptr_t kMostAlignment = 256;  ///< bytes that cuBLASLt knows to use
/// Algorithms are chosen for this many, the refiner's: those for 16,384 are 1 to 5 % slower in long runs.
constexpr std::int64_t kTypicalRows = std::int64_t{1} << 19;

void check(cublasStatus_t status, const char* what) {
  require(status == CUBLAS_STATUS_SUCCESS, "matrix product: {}: {}", what, cublasLtGetStatusString(status));
}

cudaDataType_t type_of(DType dtype) {
  return dtype == DType::bf16 ? CUDA_R_16BF : CUDA_R_32F;
}

/// cuBLAS sees matrices by columns: our rows are its columns.
struct Layout {
  cublasLtMatrixLayoutOpaque_t opaque;
  cublasLtMatrixLayout_t handle = &opaque;
  Layout(DType dtype, std::int64_t columns, std::int64_t rows, std::int64_t pitch) {
    check(cublasLtMatrixLayoutInit(&opaque, type_of(dtype), static_cast<std::uint64_t>(columns),
                                   static_cast<std::uint64_t>(rows), pitch),
          "matrix layout");
  }
};

struct Operation {
  cublasLtMatmulDescOpaque_t opaque;
  cublasLtMatmulDesc_t handle = &opaque;
  Operation() {
    check(cublasLtMatmulDescInit(&opaque, CUBLAS_COMPUTE_32F, CUDA_R_32F), "description");
    const cublasOperation_t transposed = CUBLAS_OP_T;
    check(cublasLtMatmulDescSetAttribute(handle, CUBLASLT_MATMUL_DESC_TRANSA, &transposed, sizeof transposed),
          "description");
  }
};

std::uint32_t alignment(const void* pointer, std::int64_t pitch, DType dtype) {
  const auto bits = reinterpret_cast<std::uintptr_t>(pointer) |
                    static_cast<std::uintptr_t>(pitch) * size_of(dtype) | kMostAlignment;
  return static_cast<std::uint32_t>(bits & ~(bits - 1));
}

}  // namespace

MatrixProducts::MatrixProducts() {
  cublasLtHandle_t handle = nullptr;
  check(cublasLtCreate(&handle), "starting cuBLASLt");
  handle_ = {handle, [](cublasLtHandle_t h) { cublasLtDestroy(h); }};
  void* memory = nullptr;
  check_cuda(cudaMalloc(&memory, kWorkspace), "matrix products: workspace");
  workspace_ = {memory, [](void* p) { cudaFree(p); }};
  check_cuda(cudaMalloc(&memory, sizeof(int)), "matrix products: counter");
  counter_ = {memory, [](void* p) { cudaFree(p); }};
  check_cuda(cudaMemset(memory, 0, sizeof(int)), "matrix products: counter");
}

const cublasLtMatmulAlgo_t& MatrixProducts::algorithm(const Key& key) {
  if (const auto known = algorithms_.find(key); known != algorithms_.end()) return known->second;
  const Operation operation;
  const auto unit = [](std::uint32_t bytes, DType dtype) {  // a pitch of this alignment and no more
    return static_cast<std::int64_t>(std::max<std::size_t>(bytes / size_of(dtype), 1));
  };
  const auto pitch = [&](std::int64_t columns, std::uint32_t bytes, DType dtype) {
    const std::int64_t step = unit(bytes, dtype);
    return (columns + step - 1) / step * step;
  };
  const Layout w(key.input, key.in, key.out, pitch(key.in, key.w_alignment, key.input));
  const Layout x(key.input, key.in, kTypicalRows, pitch(key.in, key.x_alignment, key.input));
  const Layout y(key.output, key.out, kTypicalRows, pitch(key.out, key.y_alignment, key.output));

  cublasLtMatmulPreferenceOpaque_t preference;
  check(cublasLtMatmulPreferenceInit(&preference), "preference");
  const auto prefer = [&](cublasLtMatmulPreferenceAttributes_t attribute, auto value) {
    check(cublasLtMatmulPreferenceSetAttribute(&preference, attribute, &value, sizeof value), "preference");
  };
  prefer(CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, std::uint64_t{kWorkspace});
  prefer(CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, std::uint32_t{CUBLASLT_REDUCTION_SCHEME_NONE});
  prefer(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, key.w_alignment);
  prefer(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, key.x_alignment);
  prefer(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, key.y_alignment);
  prefer(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, key.y_alignment);

  std::array<cublasLtMatmulHeuristicResult_t, 8> found{};
  int count = 0;
  const cublasStatus_t status =
      cublasLtMatmulAlgoGetHeuristic(handle_.get(), operation.handle, w.handle, x.handle, y.handle, y.handle,
                                     &preference, static_cast<int>(found.size()), found.data(), &count);
  for (int i = 0; status == CUBLAS_STATUS_SUCCESS && i < count; ++i) {
    if (found[i].state != CUBLAS_STATUS_SUCCESS) continue;
    int parts = 1;
    cublasLtMatmulAlgoConfigGetAttribute(&found[i].algo, CUBLASLT_ALGO_CONFIG_SPLITK_NUM, &parts,
                                         sizeof parts, nullptr);
    if (parts <= 1) return algorithms_.emplace(key, found[i].algo).first->second;
  }
  fail("matrix product [n,{}]·[{},{}]ᵀ in {}: cuBLASLt knows no algorithm", key.in, key.out, key.in,
       name_of(key.input));
}

void MatrixProducts::multiply(const Tensor& x, const Tensor& w, Tensor& y, bool add, cudaStream_t stream) {
  const std::int64_t rows = x.dim(0), in = x.dim(1), out = w.dim(0);
  if (rows == 0) return;
  const std::int64_t x_pitch = rows > 1 ? x.pitch() : in, y_pitch = rows > 1 ? y.pitch() : out;
  const Key key{out,
                in,
                x.dtype(),
                y.dtype(),
                alignment(x.raw(), x.pitch(), x.dtype()),
                alignment(w.raw(), w.pitch(), x.dtype()),
                alignment(y.raw(), y.pitch(), y.dtype())};
  const cublasLtMatmulAlgo_t& algo = algorithm(key);
  const Operation operation;
  const Layout w_layout(x.dtype(), in, out, w.pitch()), x_layout(x.dtype(), in, rows, x_pitch),
      y_layout(y.dtype(), out, rows, y_pitch);
  const float one = 1, old = add ? 1.f : 0.f;
  check(cublasLtMatmul(handle_.get(), operation.handle, &one, w.raw(), w_layout.handle, x.raw(),
                       x_layout.handle, &old, y.raw(), y_layout.handle, y.raw(), y_layout.handle, &algo,
                       workspace_.get(), kWorkspace, stream),
        "launch");
}

}  // namespace magi::cuda
