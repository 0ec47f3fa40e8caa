// SPDX-License-Identifier: Apache-2.0
#include <cuda_runtime_api.h>

#include <vector>

#include "comm/nccl_window.h"
#include "core/memory_ledger.h"

#if NCCL_VERSION_CODE >= NCCL_VERSION(2, 28, 0)
#include <nccl_device.h>

namespace magi {
namespace {

void check(cudaError_t status) {
  require(status == cudaSuccess, "ranks: shared memory: {}", cudaGetErrorString(status));
}

void check(ncclResult_t status) {
  require(status == ncclSuccess, "NCCL: shared memory: {} ({})", ncclGetErrorString(status),
          ncclGetLastError(nullptr));
}

__global__ void addresses_kernel(ncclWindow_t window, int ranks, void** pieces) {
  for (int r = 0; r < ranks; ++r) pieces[r] = ncclGetLsaPointer(window, 0, r);
}

class NcclWindow final : public Window {
 public:
  NcclWindow(ncclComm_t communicator, int ranks, Device device, std::size_t bytes)
      : communicator_(communicator), device_(device), bytes_(bytes), entry_(device, bytes) {
    check(ncclMemAlloc(&own_, bytes));
    check(ncclCommWindowRegister(communicator, own_, bytes, &window_, NCCL_WIN_COLL_SYMMETRIC));
    if (window_ == nullptr) return;
    void** found = nullptr;
    pieces_.resize(static_cast<std::size_t>(ranks));
    check(cudaMalloc(&found, sizeof(void*) * pieces_.size()));
    addresses_kernel<<<1, 1>>>(window_, ranks, found);
    check(cudaGetLastError());
    check(cudaMemcpy(pieces_.data(), found, sizeof(void*) * pieces_.size(), cudaMemcpyDeviceToHost));
    check(cudaFree(found));
  }
  bool reaches_all() const { return window_ != nullptr; }

  std::byte* on(int rank) const override {
    return static_cast<std::byte*>(pieces_.at(static_cast<std::size_t>(rank)));
  }
  std::size_t bytes() const override { return bytes_; }
  Device device() const override { return device_; }
  void close() override {
    check(cudaDeviceSynchronize());
    if (window_) check(ncclCommWindowDeregister(communicator_, window_));
    check(ncclMemFree(own_));
    entry_ = {};
  }

 private:
  ncclComm_t communicator_;
  Device device_;
  std::size_t bytes_;
  LedgerEntry entry_;
  void* own_ = nullptr;
  ncclWindow_t window_ = nullptr;
  std::vector<void*> pieces_;
};

}  // namespace

std::shared_ptr<Window> make_nccl_window(ncclComm_t communicator, int ranks, Device device,
                                         std::size_t bytes) {
  if (ncclTeamLsa(communicator).nRanks < ranks) return nullptr;
  const auto window = std::make_shared<NcclWindow>(communicator, ranks, device, bytes);
  if (window->reaches_all()) return window;
  window->close();
  return nullptr;
}

}  // namespace magi

#else

namespace magi {

/// Older ones do not tell where a window lies.
std::shared_ptr<Window> make_nccl_window(ncclComm_t, int, Device, std::size_t) {
  return nullptr;
}

}  // namespace magi

#endif
