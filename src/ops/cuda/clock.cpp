// SPDX-License-Identifier: Apache-2.0
// The device's own clock.
#include "ops/cuda/check.h"
#include "ops/cuda/cuda_ops.h"

namespace magi {
namespace {

using cuda::check_cuda;

class EventClock final : public OpClock {
 public:
  explicit EventClock(cudaStream_t stream) : stream_(stream) {}
  ~EventClock() override {
    for (cudaEvent_t event : events_) cudaEventDestroy(event);
  }
  EventClock(const EventClock&) = delete;
  EventClock& operator=(const EventClock&) = delete;

  void mark() override {
    cudaEvent_t event = nullptr;
    check_cuda(cudaEventCreate(&event), "creating an event");
    events_.push_back(event);
    check_cuda(cudaEventRecord(event, stream_), "recording an event");
  }
  std::vector<double> milliseconds() override {
    std::vector<double> times;
    if (!events_.empty()) check_cuda(cudaEventSynchronize(events_.back()), "waiting for the device");
    for (cudaEvent_t event : events_) {
      float elapsed = 0;
      check_cuda(cudaEventElapsedTime(&elapsed, events_.front(), event), "reading the time between events");
      times.push_back(elapsed);
    }
    return times;
  }

 private:
  cudaStream_t stream_;
  std::vector<cudaEvent_t> events_;
};

}  // namespace

std::unique_ptr<OpClock> CudaOps::make_clock() {
  return std::make_unique<EventClock>(stream());
}

}  // namespace magi
