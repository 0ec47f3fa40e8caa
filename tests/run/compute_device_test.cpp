// SPDX-License-Identifier: Apache-2.0
#include "run/compute_device.h"

#include <gtest/gtest.h>

#include "ops/devices.h"
#include "support/expect_error.h"

namespace magi {
namespace {

TEST(ComputeDevice, ScratchIsOnTheDefaultDevice) {
  const Device device = default_device();
  EXPECT_EQ(device.kind == Device::Kind::cuda, !cuda_devices().empty());
  EXPECT_EQ(scratch_arena(device, 1 << 20).device(), device);
}

TEST(ComputeDevice, MissingDeviceIsAnError) {
  expect_error([] { scratch_arena(parse_device("cuda:77"), 1 << 20); }, "cuda:77");
}

}  // namespace
}  // namespace magi
