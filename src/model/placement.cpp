// SPDX-License-Identifier: Apache-2.0
#include "model/placement.h"

#include <algorithm>
#include <iterator>
#include <numeric>

#include "core/error.h"
#include "core/memory_ledger.h"

namespace magi {
namespace {

/// `count` of the layers in `among`, spread evenly.
std::vector<int> spread(const std::vector<int>& among, std::size_t count) {
  std::vector<int> chosen;
  for (std::size_t i = 0; i < among.size(); ++i)
    if ((i + 1) * count / among.size() > i * count / among.size()) chosen.push_back(among[i]);
  return chosen;
}

/// The most layers of `among` that fit into `room` when spread evenly go to `place`; the others are returned.
std::vector<int> settle(Placement& placement, Place place, const std::vector<int>& among, std::size_t room,
                        const std::vector<std::size_t>& bytes) {
  std::vector<int> chosen;
  for (std::size_t count = 1; count <= among.size(); ++count) {
    std::vector<int> more = spread(among, count);
    std::size_t total = 0;
    for (const int layer : more) total += bytes[static_cast<std::size_t>(layer)];
    if (total <= room) chosen = std::move(more);
  }
  for (const int layer : chosen) placement.layers[static_cast<std::size_t>(layer)] = place;
  std::vector<int> rest;
  std::set_difference(among.begin(), among.end(), chosen.begin(), chosen.end(), std::back_inserter(rest));
  return rest;
}

}  // namespace

int Placement::count(Place place) const {
  return static_cast<int>(std::count(layers.begin(), layers.end(), place));
}

Placement place_layers(const std::string& what, const std::vector<std::size_t>& bytes,
                       const LayerRoom& room) {
  Placement placement;
  const std::size_t all = std::accumulate(bytes.begin(), bytes.end(), std::size_t{0});
  if (all <= room.device) return placement;
  placement.host_computes = room.host_computes;
  placement.slot_bytes = *std::max_element(bytes.begin(), bytes.end());
  const std::size_t slots = slots_bytes(placement);
  std::vector<int> layers(bytes.size());
  std::iota(layers.begin(), layers.end(), 0);

  /// What is left when the device has what fits beside `taken` of its room.
  const auto settle_on_device = [&](std::size_t taken) {
    require(taken <= room.device,
            "the {} needs {} for the layers that come and go, where {} are left: allow more "
            "with {}",
            what, memory_text(taken), memory_text(room.device), room.host_computes ? "--ram" : "--vram");
    placement.layers.assign(bytes.size(), Place::disk);
    return settle(placement, Place::device, layers, room.device - taken, bytes);
  };
  if (room.host_computes) {
    settle_on_device(slots + room.loading);
    return placement;
  }
  std::vector<int> others = settle_on_device(slots);
  std::size_t waiting = 0;
  for (const int layer : others) waiting += bytes[static_cast<std::size_t>(layer)];
  if (waiting <= room.host) {
    std::replace(placement.layers.begin(), placement.layers.end(), Place::disk, Place::host);
    return placement;
  }
  others = settle_on_device(slots + room.packing);
  require(slots + room.loading <= room.host,
          "the {} needs {} of host memory to be read from disk step by step, where {} are left: "
          "allow more with --ram",
          what, memory_text(slots + room.loading), memory_text(room.host));
  settle(placement, Place::host, others, room.host - slots - room.loading, bytes);
  return placement;
}

std::size_t bytes_at(const Placement& placement, Place place, const std::vector<std::size_t>& bytes) {
  std::size_t total = 0;
  for (std::size_t i = 0; i < bytes.size(); ++i)
    if (placement.of(static_cast<int>(i)) == place) total += bytes[i];
  return total;
}

std::size_t slots_bytes(const Placement& placement) {
  return static_cast<std::size_t>(placement.slots) * placement.slot_bytes;
}

}  // namespace magi
