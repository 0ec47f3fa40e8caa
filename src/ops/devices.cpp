// SPDX-License-Identifier: Apache-2.0
#include "ops/devices.h"

namespace magi {

std::unique_ptr<Ops> make_ops(Arena& arena) {
  return arena.device().kind == Device::Kind::cuda ? make_cuda_ops(arena) : make_cpu_ops(arena);
}

}  // namespace magi
