// SPDX-License-Identifier: Apache-2.0
// A latent's way between the host, where it is [C,T,H,W], and the backend, where it is rows of cells.
#pragma once

#include <memory>
#include <vector>

#include "core/tensor_pool.h"
#include "model/tokens.h"
#include "ops/ops.h"

namespace magi {

/// The host's side of the copies is memory that the device reads and writes itself, and the same in every
/// step: new pages, and the driver's own copies out of them, would take longer than all of a step's
/// arithmetic on the host.
class LatentPassage {
 public:
  explicit LatentPassage(Ops& ops) : ops_(ops) {}

  /// [C,T,H,W] (a leading 1 is fine), host f32 → [T·H·W, C] in `order`, scratch of the backend. Waits for
  /// nothing; the next call of to_host() comes after it.
  Tensor to_cells(const Tensor& latent, const std::vector<std::int32_t>& order);
  /// The way back; waits for the device.
  Tensor to_host(const Tensor& cells, LatentGrid grid, const std::vector<std::int32_t>& order);

  /// Memory of the latents that it made, for others of their size.
  const TensorPool& pool() const { return latents_; }

 private:
  Tensor staging(const Shape& shape);

  Ops& ops_;
  TensorPool latents_;
  std::shared_ptr<std::byte> memory_;
  std::size_t bytes_ = 0;
};

}  // namespace magi
