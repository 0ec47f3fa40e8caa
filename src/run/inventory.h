// SPDX-License-Identifier: Apache-2.0
// What a checkpoint holds and what it lacks: the models' own loaders run against a store that lends no data.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "run/components.h"

namespace magi {

struct PartInventory {
  std::string name;  ///< "preview", "text encoder", …
  std::filesystem::path path;
  bool needed = true;  ///< by text-to-video; else an optional part
  std::size_t tensors = 0, bytes = 0;
  std::vector<std::string> dtypes;    ///< as stored, most bytes first
  std::vector<std::string> problems;  ///< missing files, missing or misshapen tensors; empty: complete
  std::size_t unknown = 0;            ///< tensors that no loader asks for
};

/// Every part of a root, in the pipeline's order.
std::vector<PartInventory> take_inventory(const CheckpointRoot& root);

}  // namespace magi
