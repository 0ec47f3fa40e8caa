// SPDX-License-Identifier: Apache-2.0
// Devices, memory and transfers of the CUDA backend.
#include "ops/cuda/cuda_ops.h"

#include <algorithm>

#include "core/memory_ledger.h"
#include "ops/cuda/check.h"
#include "ops/devices.h"

namespace magi {
namespace {

using cuda::check_cuda;

std::shared_ptr<void> device_memory(int device, std::size_t bytes) {
  check_cuda(cudaSetDevice(device), "choosing the CUDA device");
  auto entry = std::make_shared<LedgerEntry>(Device{Device::Kind::cuda, device}, bytes);
  void* memory = nullptr;
  const cudaError_t status = cudaMalloc(&memory, bytes > 0 ? bytes : 1);
  if (status == cudaErrorMemoryAllocation) {
    cudaGetLastError();
    std::size_t free = 0, total = 0;
    check_cuda(cudaMemGetInfo(&free, &total), "reading the free memory");
    fail("cuda:{}: {} MiB are needed, {} of {} MiB are free", device, bytes >> 20, free >> 20, total >> 20);
  }
  check_cuda(status, "allocating device memory");
  return {memory, [device, entry](void* p) {
            cudaSetDevice(device);
            cudaFree(p);
          }};
}

}  // namespace

std::vector<CudaDeviceInfo> cuda_devices() {
  int count = 0;
  if (cudaGetDeviceCount(&count) != cudaSuccess) {
    cudaGetLastError();
    return {};
  }
  std::vector<CudaDeviceInfo> devices;
  for (int i = 0; i < count; ++i) {
    cudaDeviceProp properties;
    CudaDeviceInfo info;
    check_cuda(cudaGetDeviceProperties(&properties, i), "reading the CUDA device's properties");
    check_cuda(cudaSetDevice(i), "choosing the CUDA device");
    check_cuda(cudaMemGetInfo(&info.free_bytes, &info.memory_bytes), "reading the free memory");
    info.name = properties.name;
    info.sm = properties.major * 10 + properties.minor;
    devices.push_back(std::move(info));
  }
  return devices;
}

Arena make_cuda_arena(int device, std::size_t bytes) {
  const auto devices = cuda_devices();
  require(device >= 0 && device < static_cast<int>(devices.size()),
          "cuda:{}: there are {} CUDA devices; choose another or use --device cpu", device, devices.size());
  auto memory = device_memory(device, bytes);
  void* start = memory.get();
  return Arena::over(start, bytes, Device{Device::Kind::cuda, device}, std::move(memory));
}

std::unique_ptr<Ops> make_cuda_ops(Arena& arena) {
  return std::make_unique<CudaOps>(arena);
}

CudaOps::CudaOps(Arena& arena) : Ops(arena) {
  if (arena.counts_only()) return;
  check_cuda(cudaSetDevice(device().index), "choosing the CUDA device");
  cudaStream_t stream = nullptr;
  check_cuda(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), "creating a stream");
  stream_ = {stream, [](cudaStream_t s) {
               cudaStreamSynchronize(s);
               cudaStreamDestroy(s);
             }};
}

cudaStream_t CudaOps::stream() const {
  check_cuda(cudaSetDevice(device().index), "choosing the CUDA device");
  return stream_.get();
}

Tensor CudaOps::allocate(DType dtype, Shape shape) const {
  const std::size_t bytes =
      static_cast<std::size_t>(numel(shape)) * size_of(dtype) + 64;  // slack as in the arena
  auto memory = stream_ ? device_memory(device().index, bytes) : nullptr;
  void* start = memory.get();
  held_->bytes += bytes;
  held_->peak_bytes = std::max<std::size_t>(held_->peak_bytes, held_->bytes);
  std::shared_ptr<const void> lease(start,
                                    [memory, bytes, held = held_](const void*) { held->bytes -= bytes; });
  return Tensor::view(start, dtype, std::move(shape), std::move(lease), device());
}

Tensor CudaOps::upload(const Tensor& host) {
  const Tensor source = host.contiguous() ? host : host.clone();
  Tensor result = allocate(host.dtype(), host.shape());
  if (result.raw() && result.bytes() > 0)
    check_cuda(cudaMemcpyAsync(result.raw(), source.raw(), source.bytes(), cudaMemcpyHostToDevice, stream()),
               "copying to the device");
  return result;
}

Tensor CudaOps::download(const Tensor& source) {
  if (!stream_) return Tensor::zeros(source.dtype(), source.shape());
  Tensor result = Tensor::empty(source.dtype(), source.shape());
  if (source.contiguous()) {
    download_to(source, static_cast<std::byte*>(result.raw()));
    return result;
  }
  const std::size_t rows = source.rank() > 0 ? static_cast<std::size_t>(source.dim(0)) : 1;
  if (result.bytes() > 0) {
    const std::size_t width = result.bytes() / rows;
    const std::size_t pitch =
        rows > 1 ? static_cast<std::size_t>(source.pitch()) * size_of(source.dtype()) : width;
    check_cuda(cudaMemcpy2DAsync(result.raw(), width, source.raw(), pitch, width, rows,
                                 cudaMemcpyDeviceToHost, stream()),
               "copying from the device");
  }
  check_cuda(cudaStreamSynchronize(stream()), "waiting for the device");
  return result;
}

void CudaOps::download_to(const Tensor& tensor, std::byte* host) {
  require(tensor.contiguous(), "download: a tensor {} with a row pitch", to_string(tensor.shape()));
  if (tensor.bytes() > 0)
    check_cuda(cudaMemcpyAsync(host, tensor.raw(), tensor.bytes(), cudaMemcpyDeviceToHost, stream()),
               "copying from the device");
  check_cuda(cudaStreamSynchronize(stream()), "waiting for the device");
}

void CudaOps::copy_in(Tensor destination, const Tensor& host) {
  require(destination.shape() == host.shape() && destination.dtype() == host.dtype() &&
              destination.contiguous() && host.contiguous(),
          "copy_in: {} {} cannot be copied into {} {}", name_of(host.dtype()), to_string(host.shape()),
          name_of(destination.dtype()), to_string(destination.shape()));
  if (stream_ && host.bytes() > 0)
    check_cuda(cudaMemcpyAsync(destination.raw(), host.raw(), host.bytes(), cudaMemcpyHostToDevice, stream()),
               "copying to the device");
}

}  // namespace magi
