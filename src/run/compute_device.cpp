// SPDX-License-Identifier: Apache-2.0
#include "run/compute_device.h"

#include <unistd.h>

#include "ops/devices.h"

namespace magi {

Device default_device() {
  return cuda_devices().empty() ? Device{} : Device{Device::Kind::cuda, 0};
}

Arena scratch_arena(Device device, std::size_t gpu_bytes) {
  if (device.kind == Device::Kind::cuda) return make_cuda_arena(device.index, gpu_bytes);
  // Address space only: more than a stage can use without swapping.
  return Arena::on_host(2 * static_cast<std::size_t>(sysconf(_SC_PHYS_PAGES)) *
                        static_cast<std::size_t>(sysconf(_SC_PAGESIZE)));
}

}  // namespace magi
