// SPDX-License-Identifier: Apache-2.0
// A layer as one run of bytes, so that it moves in one copy.
#pragma once

#include <cstddef>
#include <memory>
#include <vector>

#include "model/layer_tensors.h"

namespace magi {

/// Bytes of a layer in host memory.
struct LayerImage {
  std::shared_ptr<const std::byte> data;
  std::size_t bytes = 0;
};

/// A layer without its data, and where in an image each of its tensors lies.
template <typename Layer>
class LayerPattern {
 public:
  /// Of a layer as the backend lays it out.
  explicit LayerPattern(Layer layer) : layer_(std::move(layer)) {
    visit(layer_, [&](Tensor& t) {
      if (!t.defined()) return;
      require(t.contiguous(), "a layer's tensor has a row pitch");
      offsets_.push_back(bytes_);
      bytes_ += (t.bytes() + kSlack + kAlignment - 1) / kAlignment * kAlignment;
      t = Tensor::view(nullptr, t.dtype(), t.shape(), nullptr, t.device());
    });
  }

  std::size_t bytes() const { return bytes_; }

  /// Copies the tensors of `layer`, which has this pattern, from where the backend has them to an image.
  void write(Ops& ops, Layer layer, std::byte* to) const {
    std::size_t i = 0;
    visit(layer, [&](Tensor& t) {
      if (!t.defined()) return;
      const std::size_t end = i + 1 < offsets_.size() ? offsets_[i + 1] : bytes_;
      require(i < offsets_.size() && offsets_[i] + t.bytes() <= end, "layers differ that should be alike");
      ops.download_to(t, to + offsets_[i++]);
      t = {};
    });
  }

  /// The layer over an image that lies at `start` on `device`; `keep` is held by its tensors.
  Layer at(std::byte* start, Device device, const std::shared_ptr<const void>& keep = nullptr) const {
    Layer layer = layer_;
    auto offset = offsets_.begin();
    visit(layer, [&](Tensor& t) {
      if (t.defined()) t = Tensor::view(start + *offset++, t.dtype(), t.shape(), keep, device);
    });
    return layer;
  }

 private:
  static constexpr std::size_t kAlignment = 256, kSlack = 64;  // as in an Arena

  Layer layer_;
  std::vector<std::size_t> offsets_;
  std::size_t bytes_ = 0;
};

}  // namespace magi
