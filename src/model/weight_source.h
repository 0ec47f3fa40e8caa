// SPDX-License-Identifier: Apache-2.0
// Where a model's layers come from: resident memory, streamed from the host, or read from disk. The model
// cannot tell.
#pragma once

#include <memory>
#include <utility>
#include <vector>

#include "ops/transfer.h"

namespace magi {

/// A borrowed layer; giving up the lease tells the source that its memory may be reused.
template <typename Layer>
using Lease = std::shared_ptr<const Layer>;

template <typename Layer>
class WeightSource {
 public:
  virtual ~WeightSource() = default;
  virtual int count() const = 0;
  /// Lends layer i (0 … count()−1), laid out for the backend's kernels and ready on its device.
  virtual Lease<Layer> layer(int i) = 0;
  /// Of copies to the device since the last call; nothing where there are none.
  virtual TransferTimes take_transfer_times() { return {}; }
};

/// Every layer stays in memory.
template <typename Layer>
class ResidentWeights final : public WeightSource<Layer> {
 public:
  void add(Layer layer) { layers_.push_back(std::make_shared<const Layer>(std::move(layer))); }
  int count() const override { return static_cast<int>(layers_.size()); }
  Lease<Layer> layer(int i) override { return layers_.at(static_cast<std::size_t>(i)); }

 private:
  std::vector<Lease<Layer>> layers_;
};

}  // namespace magi
