// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "model/tokens.h"
#include "ops/ops.h"
#include "support/backend.h"
#include "support/golden.h"

namespace magi {

/// A backend and its scratch memory.
class DecoderScene {
 public:
  DecoderScene() : arena_(test_arena()), ops_(make_ops(arena_)) {}
  Ops& ops() { return *ops_; }
  Arena& arena() { return arena_; }

 private:
  Arena arena_;
  std::unique_ptr<Ops> ops_;
};

/// [T,H,W,C] on the host → [C,T,H,W].
inline Tensor channels_first(const Tensor& video) {
  const LatentGrid grid{video.dim(0), video.dim(1), video.dim(2)};
  return latent_from_cells(video.reshape({grid.cells(), video.dim(3)}), grid);
}

/// What follows `prefix` in the names of a case: its lengths.
inline std::vector<std::string> lengths_in(const GoldenCase& golden, const std::string& prefix) {
  std::vector<std::string> lengths;
  for (const auto& [name, info] : golden.store().entries())
    if (name.starts_with(prefix)) lengths.push_back(name.substr(prefix.size()));
  return lengths;
}

}  // namespace magi
