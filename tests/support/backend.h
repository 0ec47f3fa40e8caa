// SPDX-License-Identifier: Apache-2.0
// Where golden tests compute: $MAGI2_TEST_DEVICE is "cpu" (default) or "cuda".
#pragma once

#include <cstdlib>
#include <memory>
#include <string>

#include "ops/devices.h"

namespace magi {

inline bool tests_on_cuda() {
  const char* chosen = std::getenv("MAGI2_TEST_DEVICE");
  return chosen && std::string(chosen) == "cuda";
}

inline Device test_device() {
  return tests_on_cuda() ? Device{Device::Kind::cuda, 0} : Device{};
}

/// Scratch memory for a golden test. On the host every new tensor is full of NaN.
inline Arena test_arena(std::size_t bytes = std::size_t{4} << 30) {
  if (tests_on_cuda()) return make_cuda_arena(0, bytes);
  Arena arena = Arena::on_host(bytes);
  arena.poison(true);
  return arena;
}

}  // namespace magi
