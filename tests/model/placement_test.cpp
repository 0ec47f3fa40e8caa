// SPDX-License-Identifier: Apache-2.0
#include "model/placement.h"

#include <gtest/gtest.h>

#include "support/expect_error.h"

namespace magi {
namespace {

std::string letters(const Placement& p) {
  std::string text;
  for (const Place place : p.layers) text += place == Place::device ? 'D' : place == Place::host ? 'h' : '.';
  return text;
}

std::string placed(std::vector<std::size_t> bytes, LayerRoom room) {
  const Placement p = place_layers("model", bytes, room);
  if (p.streams()) {
    EXPECT_LE(bytes_at(p, Place::device, bytes) + slots_bytes(p), room.device);
    const std::size_t reading = p.count(Place::disk) > 0 ? slots_bytes(p) + room.loading : 0;
    if (!room.host_computes) {
      EXPECT_LE(bytes_at(p, Place::host, bytes) + reading, room.host);
    }
  }
  return letters(p);
}

TEST(Placement, OnTheDeviceThenOnTheHostThenOnDisk) {
  const std::vector<std::size_t> ten(10, 10);
  EXPECT_EQ(placed(ten, {100, 0}), "");  // all resident
  EXPECT_EQ(placed(ten, {99, 1000}), "hDDhDDhDDD");
  EXPECT_EQ(placed(ten, {20, 1000}), "hhhhhhhhhh");
  EXPECT_EQ(placed(ten, {40, 80}), "hhhhDhhhhD");
  EXPECT_EQ(placed(ten, {40, 79}), ".h.hDh.hhD");
}

TEST(Placement, AHostThatComputesKeepsNothingTwice) {
  const std::vector<std::size_t> four{10, 20, 20, 10};
  LayerRoom room{60, 0, true};
  EXPECT_EQ(placed(four, room), "");
  room.device = 59;
  EXPECT_EQ(placed(four, room), "...D");
  room = {59, 0, true, 15};
  EXPECT_EQ(placed(four, room), "....");
}

TEST(Placement, SaysWhatIsMissing) {
  const std::vector<std::size_t> layers(4, std::size_t{2} << 30);
  expect_error(
      [&] {
        place_layers("preview", layers, {std::size_t{3} << 30, 0});
      },
      "the preview needs 4.00 GiB for the layers that come and go, where 3.00 GiB are left: allow more with "
      "--vram");
  expect_error([&] { place_layers("preview", layers, {std::size_t{3} << 30, 0, true}); }, "--ram");
  expect_error(
      [&] {
        place_layers("preview", layers, {std::size_t{5} << 30, std::size_t{1} << 30});
      },
      "4.00 GiB of host memory to be read from disk");
}

}  // namespace
}  // namespace magi
