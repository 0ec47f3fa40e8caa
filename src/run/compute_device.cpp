// SPDX-License-Identifier: Apache-2.0
#include "run/compute_device.h"

#include <unistd.h>

#include "ops/devices.h"

namespace magi {

Device default_device() {
  return cuda_devices().empty() ? Device{} : Device{Device::Kind::cuda, 0};
}

Arena scratch_arena(Device device) {
  if (device.kind == Device::Kind::cuda) {
    const auto devices = cuda_devices();
    const auto index = static_cast<std::size_t>(device.index);
    return make_cuda_arena(device.index, index < devices.size() ? devices[index].free_bytes / 3 : 0);
  }
  // Address space only: more than a stage can use without swapping.
  return Arena::on_host(2 * static_cast<std::size_t>(sysconf(_SC_PHYS_PAGES)) *
                        static_cast<std::size_t>(sysconf(_SC_PAGESIZE)));
}

}  // namespace magi
