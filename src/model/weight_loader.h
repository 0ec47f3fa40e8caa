// SPDX-License-Identifier: Apache-2.0
// Reads a model's tensors by name and hands them to the backend in its own layout. Names are relative to a
// prefix, so a layer's loader reads like the layer.
#pragma once

#include <functional>
#include <numeric>
#include <string>
#include <string_view>
#include <vector>

#include "io/tensor_store.h"
#include "ops/ops.h"

namespace magi {

class WeightLoader {
 public:
  /// Told of every tensor of numbers that is asked for: its name, its shape and what it will be computed in.
  using OnRequest = std::function<void(const std::string& name, const Shape& shape, DType use)>;

  /// `dtype`: compute dtype of the linear layers.
  WeightLoader(Ops& ops, const TensorStore& store, DType dtype, std::string prefix = "",
               OnRequest on_request = {})
      : ops_(ops),
        store_(store),
        dtype_(dtype),
        prefix_(std::move(prefix)),
        on_request_(std::move(on_request)) {}

  /// The same store, names below `part`.
  WeightLoader in(std::string_view part) const {
    return {ops_, store_, dtype_, name(part) + ".", on_request_};
  }

  bool has(std::string_view tensor) const { return store_.has(name(tensor)); }
  /// f32 on the host.
  Tensor host(std::string_view tensor, const Shape& shape) const {
    return get(tensor, shape, DType::f32).to(DType::f32);
  }
  /// As stored, on the host.
  Tensor stored(std::string_view tensor, const Shape& shape) const { return get(tensor, shape, dtype_); }
  /// Bytes as they are, on the host.
  Tensor bytes(std::string_view tensor, const Shape& shape) const {
    const Tensor t = store_.load(name(tensor));
    require(t.dtype() == DType::u8 && t.shape() == shape, "{}: {} is {} {}, expected U8 {}", store_.where(),
            name(tensor), stored_name(t.dtype()), to_string(t.shape()), to_string(shape));
    return t;
  }
  /// f32 where the backend computes.
  Tensor tensor(std::string_view tensor, const Shape& shape) const {
    return ops_.upload(host(tensor, shape));
  }

  /// `layer`.weight [groups·out, in].
  LinearWeight linear(std::string_view layer, int groups, std::int64_t out, std::int64_t in) const {
    return ops_.pack_linear(stored(std::string(layer) + ".weight", {groups * out, in}), groups, dtype_);
  }
  /// `layer`.weight [Σ outs, in] as matrices of so many rows; those of none stay undefined.
  std::vector<LinearWeight> linear_parts(std::string_view layer, const std::vector<std::int64_t>& outs,
                                         std::int64_t in) const {
    const std::int64_t all = std::accumulate(outs.begin(), outs.end(), std::int64_t{0});
    const Tensor whole = stored(std::string(layer) + ".weight", {all, in});
    std::vector<LinearWeight> parts;
    std::int64_t first = 0;
    for (const std::int64_t out : outs) {
      parts.push_back(out > 0 ? ops_.pack_linear(whole.rows(first, out), 1, dtype_) : LinearWeight());
      first += out;
    }
    return parts;
  }
  /// `layer`.weight [out, in] computed in f32, with `layer`.bias [out] where `bias`.
  LinearWeight linear_f32(std::string_view layer, std::int64_t out, std::int64_t in, bool bias) const {
    const Tensor b = bias ? host(std::string(layer) + ".bias", {out}) : Tensor();
    return ops_.pack_linear(get(std::string(layer) + ".weight", {out, in}, DType::f32), 1, DType::f32, b);
  }
  /// `layer`.weight [groups·dim].
  NormWeight norm(std::string_view layer, int groups, std::int64_t dim, float eps = 1e-6f) const {
    return {groups, tensor(std::string(layer) + ".weight", {groups * dim}), eps};
  }

  /// `layer`.weight as PyTorch stores a convolution's, [out, in, kernel…], with `layer`.bias [out].
  ConvWeight conv(std::string_view layer, const Shape& shape) const { return conv(layer, shape, false); }
  /// `layer`.weight [channels, 1, kernel…]: one group a channel; with `layer`.bias [channels].
  ConvWeight depthwise_conv(std::string_view layer, const Shape& shape) const {
    return conv(layer, shape, true);
  }
  /// Shape of a tensor whose size the checkpoint decides; Error when it is missing.
  const Shape& shape_of(std::string_view tensor) const {
    const auto entry = store_.entries().find(name(tensor));
    require(entry != store_.entries().end(), "{}: tensor {} is missing", store_.where(), name(tensor));
    return entry->second.shape;
  }

  /// The file or directory, for messages.
  const std::string& where() const { return store_.where(); }
  Ops& ops() const { return ops_; }
  DType dtype() const { return dtype_; }

 private:
  ConvWeight conv(std::string_view layer, const Shape& shape, bool depthwise) const {
    return ops_.pack_conv(stored(std::string(layer) + ".weight", shape),
                          host(std::string(layer) + ".bias", {shape[0]}), depthwise, false, dtype_);
  }
  Tensor get(std::string_view tensor, const Shape& shape, DType use) const {
    if (on_request_) on_request_(name(tensor), shape, use);
    return store_.get(name(tensor), shape);
  }
  std::string name(std::string_view part) const { return prefix_ + std::string(part); }

  Ops& ops_;
  const TensorStore& store_;
  DType dtype_;
  std::string prefix_;
  OnRequest on_request_;
};

}  // namespace magi
