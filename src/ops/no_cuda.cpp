// SPDX-License-Identifier: Apache-2.0
// What a build without CUDA answers.
#include "ops/devices.h"

namespace magi {

std::vector<CudaDeviceInfo> cuda_devices() {
  return {};
}

Arena make_cuda_arena(int device, std::size_t) {
  fail("cuda:{}: this program was built without CUDA; build it with `make cuda`, or use --device cpu",
       device);
}

std::unique_ptr<Ops> make_cuda_ops(Arena&) {
  fail("this program was built without CUDA; build it with `make cuda`, or use --device cpu");
}

std::unique_ptr<RecordedWork> record_cuda(Ops&, const std::function<void()>&) {
  fail("this program was built without CUDA; build it with `make cuda`");
}

}  // namespace magi
