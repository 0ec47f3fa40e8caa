// SPDX-License-Identifier: Apache-2.0
// Which of a model's layers stay on the device, which wait on the host, and which are read from disk in every
// step.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace magi {

enum class Place : std::uint8_t { device, host, disk };

struct Placement {
  std::vector<Place> layers;  ///< empty: all on the device
  int slots = 2;  ///< on the device, for the others to come through; on disk's way: layers on the host
  std::size_t slot_bytes = 0;  ///< the largest layer's
  bool host_computes = false;  ///< the device is the host: nothing is copied to it
  int reading_threads = 1;     ///< OpenMP threads for laying out what comes from disk

  Place of(int layer) const {
    return layers.empty() ? Place::device : layers[static_cast<std::size_t>(layer)];
  }
  int count(Place place) const;
  bool streams() const { return count(Place::host) + count(Place::disk) > 0; }
};

/// Room for layers, in bytes, once everything else is accounted for.
struct LayerRoom {
  std::size_t device = SIZE_MAX;
  std::size_t host = SIZE_MAX;  ///< of no matter where the host computes
  bool host_computes = false;   ///< device is the host: nothing waits there for a copy
  std::size_t loading = 0;      ///< of the host, while a layer is being read from disk
  std::size_t packing = 0;      ///< of a device that is not the host, for the same
};

/// `bytes`: of each layer. As many layers as fit stay on the device, then on the host, spread evenly, so that
/// the others are on their way while these are computed. Throws Error, saying what is missing, where not even
/// the slots fit; `what` names the model.
Placement place_layers(const std::string& what, const std::vector<std::size_t>& bytes, const LayerRoom& room);

/// Bytes of the layers at `place`.
std::size_t bytes_at(const Placement& placement, Place place, const std::vector<std::size_t>& bytes);
/// Bytes that the slots take.
std::size_t slots_bytes(const Placement& placement);

}  // namespace magi
