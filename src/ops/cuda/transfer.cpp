// SPDX-License-Identifier: Apache-2.0
// Copies to the device on a stream of their own. An event says that a slot is filled, another that the
// computation has left it: the streams wait for each other, the host for neither.
#include "ops/transfer.h"

#include <sys/mman.h>

#include <cerrno>
#include <cstdint>
#include <cstring>
#include <utility>
#include <vector>

#include "core/memory_ledger.h"
#include "ops/cuda/check.h"
#include "ops/cuda/cuda_ops.h"

namespace magi {
namespace {

using cuda::check_cuda;

constexpr std::size_t kHugePage = std::size_t{2} << 20;

class Event {
 public:
  Event() { check_cuda(cudaEventCreate(&event_), "creating an event"); }
  ~Event() { cudaEventDestroy(event_); }
  Event(const Event&) = delete;
  Event& operator=(const Event&) = delete;
  void record(cudaStream_t stream) { check_cuda(cudaEventRecord(event_, stream), "recording an event"); }
  void hold(cudaStream_t stream) const {
    check_cuda(cudaStreamWaitEvent(stream, event_, 0), "waiting for an event");
  }
  void wait() const { check_cuda(cudaEventSynchronize(event_), "waiting for a copy to the device"); }
  double ms_since(const Event& start) const {
    float elapsed = 0;
    check_cuda(cudaEventElapsedTime(&elapsed, start.event_, event_), "reading the time between events");
    return elapsed;
  }

 private:
  cudaEvent_t event_ = nullptr;
};

struct Span {
  Event begin, end;
};

class CudaTransfer final : public Transfer {
 public:
  CudaTransfer(int device, std::shared_ptr<CUstream_st> compute, std::shared_ptr<std::byte> memory, int slots,
               std::size_t slot_bytes)
      : device_(device),
        compute_(std::move(compute)),
        memory_(std::move(memory)),
        slot_bytes_(slot_bytes),
        slots_(static_cast<std::size_t>(slots)) {
    cudaStream_t stream = nullptr;
    check_cuda(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), "creating a stream");
    copies_ = {stream, [](cudaStream_t s) {
                 cudaStreamSynchronize(s);
                 cudaStreamDestroy(s);
               }};
    for (Slot& slot : slots_) slot.released.record(compute_.get());
  }
  ~CudaTransfer() override {  // the slots' memory goes next
    cudaSetDevice(device_);
    cudaStreamSynchronize(compute_.get());
  }

  std::byte* slot(int index) override {
    return memory_.get() + static_cast<std::size_t>(index) * slot_bytes_;
  }

  void fill(int index, const std::byte* host, std::size_t bytes) override {
    require(bytes <= slot_bytes_, "a layer of {} bytes does not fit a slot of {}", bytes, slot_bytes_);
    choose_device();
    Slot& s = slots_.at(static_cast<std::size_t>(index));
    s.released.hold(copies_.get());
    auto span = std::make_unique<Span>();
    span->begin.record(copies_.get());
    check_cuda(cudaMemcpyAsync(slot(index), host, bytes, cudaMemcpyHostToDevice, copies_.get()),
               "copying weights to the device");
    span->end.record(copies_.get());
    s.filled.record(copies_.get());
    copy_spans_.push_back(std::move(span));
    bytes_ += bytes;
  }

  void acquire(int index) override {
    choose_device();
    auto span = std::make_unique<Span>();
    span->begin.record(compute_.get());
    slots_.at(static_cast<std::size_t>(index)).filled.hold(compute_.get());
    span->end.record(compute_.get());
    stall_spans_.push_back(std::move(span));
  }

  void release(int index) override {
    choose_device();
    slots_.at(static_cast<std::size_t>(index)).released.record(compute_.get());
  }

  void wait_filled(int index) override { slots_.at(static_cast<std::size_t>(index)).filled.wait(); }

  TransferTimes take_times() override {
    TransferTimes times{std::exchange(bytes_, 0), sum(copy_spans_), sum(stall_spans_)};
    return times;
  }

 private:
  struct Slot {
    Event filled, released;
  };

  void choose_device() const { check_cuda(cudaSetDevice(device_), "choosing the CUDA device"); }

  static double sum(std::vector<std::unique_ptr<Span>>& spans) {
    double total = 0;
    if (!spans.empty()) spans.back()->end.wait();
    for (const auto& span : spans) total += span->end.ms_since(span->begin);
    spans.clear();
    return total;
  }

  int device_;
  std::shared_ptr<CUstream_st> compute_;
  std::shared_ptr<std::byte> memory_;
  std::size_t slot_bytes_;
  std::vector<Slot> slots_;
  std::shared_ptr<CUstream_st> copies_;  ///< after memory_: its copies end before
  std::vector<std::unique_ptr<Span>> copy_spans_, stall_spans_;
  std::size_t bytes_ = 0;
};

}  // namespace

std::unique_ptr<Transfer> CudaOps::make_transfer(int slots, std::size_t slot_bytes) {
  slot_bytes = (slot_bytes + 511) / 512 * 512;
  const Tensor memory = allocate(DType::u8, {slots, static_cast<std::int64_t>(slot_bytes)});
  auto* start = static_cast<std::byte*>(const_cast<void*>(memory.raw()));
  stream();
  return std::make_unique<CudaTransfer>(
      device().index, stream_, std::shared_ptr<std::byte>(start, [memory](std::byte*) {}), slots, slot_bytes);
}

// Pages are made by all threads, and large, before the driver locks them: both are most of the time that
// cudaHostAlloc takes for tens of gigabytes.
std::shared_ptr<std::byte> CudaOps::host_memory(std::size_t bytes) {
  auto entry = std::make_shared<LedgerEntry>(Device{}, bytes);
  const std::size_t mapped = (bytes + 2 * kHugePage - 1) / kHugePage * kHugePage;
  void* range = mmap(nullptr, mapped + kHugePage, PROT_READ | PROT_WRITE,
                     MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  require(range != MAP_FAILED, "cannot take {} MiB of host memory: {}", bytes >> 20, std::strerror(errno));
  std::shared_ptr<void> owner(range, [mapped](void* p) { munmap(p, mapped + kHugePage); });
  auto* start = reinterpret_cast<std::byte*>((reinterpret_cast<std::uintptr_t>(range) + kHugePage - 1) /
                                             kHugePage * kHugePage);
  madvise(start, mapped, MADV_HUGEPAGE);  // a hint: failure changes nothing
  constexpr std::size_t page = 4096;
  const auto huge_pages = static_cast<std::int64_t>(mapped / kHugePage);
#pragma omp parallel for schedule(dynamic, 4)
  for (std::int64_t i = 0; i < huge_pages; ++i)
    for (std::size_t at = 0; at < kHugePage; at += page)
      *reinterpret_cast<volatile char*>(start + static_cast<std::size_t>(i) * kHugePage + at) = 0;
  stream();
  check_cuda(cudaHostRegister(start, mapped, cudaHostRegisterPortable), "locking host memory for transfers");
  return {start, [owner, entry](std::byte* p) { cudaHostUnregister(p); }};
}

}  // namespace magi
