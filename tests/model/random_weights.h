// SPDX-License-Identifier: Apache-2.0
// Checkpoints of random weights for tests, written down tensor by tensor.
#pragma once

#include <algorithm>
#include <cmath>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "io/tensor_store.h"
#include "model/turbo_decoder.h"

namespace magi {

/// Normal values, f32.
inline Tensor random_normal(std::uint64_t seed, Shape shape) {
  std::mt19937_64 engine(seed);
  std::normal_distribution<float> normal;
  Tensor t = Tensor::empty(DType::f32, std::move(shape));
  for (float& v : t.values<float>()) v = normal(engine);
  return t;
}

using NamedTensors = std::vector<std::pair<std::string, Tensor>>;

class RandomWeights {
 public:
  explicit RandomWeights(std::uint64_t seed) : seed_(seed) {}

  /// mean + deviation·normal, a stream of its own for each `stream` name.
  Tensor draw(const std::string& stream, const Shape& shape, double deviation, double mean = 0) const {
    std::uint64_t hash = 14695981039346656037u ^ seed_;
    for (char c : stream) hash = (hash ^ static_cast<unsigned char>(c)) * 1099511628211u;
    Tensor t = random_normal(hash, shape);
    for (float& v : t.values<float>()) v = static_cast<float>(mean + deviation * v);
    return t;
  }
  /// `name`.weight and .bias of a convolution, scaled to keep the size of activations. `stream`: see draw().
  void conv(const std::string& name, const Shape& shape, const std::string& stream) {
    const double fan_in = static_cast<double>(numel(shape) / shape[0]);
    tensors_.emplace_back(name + ".weight", draw(stream + "w", shape, 1 / std::sqrt(fan_in)));
    tensors_.emplace_back(name + ".bias", draw(stream + "b", {shape[0]}, 0.1));
  }
  void conv(const std::string& name, const Shape& shape) { conv(name, shape, name); }
  void add(const std::string& name, Tensor tensor) { tensors_.emplace_back(name, std::move(tensor)); }

  const NamedTensors& tensors() const { return tensors_; }
  std::shared_ptr<TensorStore> store() const { return tensor_store_of("random weights", tensors_); }

 private:
  std::uint64_t seed_;
  NamedTensors tensors_;
};

/// Every tensor of a turbo decoder.
inline RandomWeights turbo_weights(const TurboConfig& config, std::uint64_t seed) {
  RandomWeights w(seed);
  const auto conv = [&](const std::string& name, std::int64_t out, std::int64_t in, std::int64_t k,
                        bool depthwise) {
    const std::int64_t d = k == 1 ? 1 : config.depthwise_kernel;
    if (depthwise) w.conv(name + ".depthwise_conv", {in, 1, d, d, d});
    if (depthwise) w.conv(name + ".pointwise_conv", {out, in, 1, 1, 1});
    if (!depthwise) w.conv(name + ".conv", {out, in, k, k, k});
  };
  const auto resnet = [&](const std::string& name, std::int64_t out, std::int64_t in, bool depthwise) {
    conv(name + ".conv1", out, in, 3, depthwise);
    conv(name + ".conv2", out, out, 3, depthwise);
    if (in != out) conv(name + ".conv_shortcut", out, in, 1, depthwise);
  };
  std::int64_t channels = config.blocks.front().channels;
  conv("decoder.conv_in", channels, 48, 3, false);
  for (std::int64_t i = 0; i < config.mid_resnets; ++i)
    resnet("decoder.mid_block.resnets." + std::to_string(i), channels, channels, config.mid_depthwise);
  for (std::size_t i = 0; i < config.blocks.size(); ++i) {
    const auto& block = config.blocks[i];
    const std::string name = "decoder.up_blocks." + std::to_string(i);
    if (block.channels != channels) resnet(name + ".conv_in", block.channels, channels, block.depthwise);
    channels = block.channels;
    if (block.upsample_time) w.conv(name + ".upsamplers.0.time_conv.conv", {2 * channels, channels, 3, 1, 1});
    if (block.upsample_space) w.conv(name + ".upsamplers.0.resample.1", {channels, channels, 3, 3});
    for (std::int64_t k = 0; k < block.resnets; ++k)
      resnet(name + ".resnets." + std::to_string(k), channels, channels, block.depthwise);
  }
  conv("decoder.conv_out", 12, channels, 3, false);
  return w;
}

/// Every tensor of a Wan autoencoder with the released arrangement of stages. Encoder and decoder are tied:
/// tensors that play the same part have the same values wherever their shapes agree.
inline RandomWeights wan_weights(std::int64_t encoder_dim, std::int64_t decoder_dim,
                                 std::int64_t residual_blocks, std::uint64_t seed) {
  RandomWeights w(seed);
  const std::vector<std::int64_t> multiples{1, 2, 4, 4};
  const std::size_t last = multiples.size() - 1;
  std::string half;  // "encoder." or "decoder."
  // "downsamples" in the one plays the part of "upsamples" in the other.
  const auto part = [](const std::string& name) {
    return name.starts_with("down") ? "up" + name.substr(4) : name;
  };
  const auto gamma = [&](const std::string& name, std::int64_t channels, Shape shape) {
    shape.insert(shape.begin(), channels);
    w.add(half + name + ".gamma", w.draw(part(name), shape, 0.2, 1));
  };
  const auto conv = [&](const std::string& name, const Shape& shape) {
    w.conv(half + name, shape, part(name));
  };
  const auto residual = [&](const std::string& name, std::int64_t out, std::int64_t in) {
    gamma(name + ".residual.0", in, {1, 1, 1});
    conv(name + ".residual.2", {out, in, 3, 3, 3});
    gamma(name + ".residual.3", out, {1, 1, 1});
    conv(name + ".residual.6", {out, out, 3, 3, 3});
    if (in != out) conv(name + ".shortcut", {out, in, 1, 1, 1});
  };
  const auto middle = [&](std::int64_t c) {
    residual("middle.0", c, c);
    gamma("middle.1.norm", c, {1, 1});
    conv("middle.1.to_qkv", {3 * c, c, 1, 1});
    conv("middle.1.proj", {c, c, 1, 1});
    residual("middle.2", c, c);
  };
  const auto head = [&](std::int64_t out, std::int64_t c) {
    gamma("head.0", c, {1, 1, 1});
    conv("head.2", {out, c, 3, 3, 3});
  };

  half = "encoder.";
  std::int64_t channels = encoder_dim;
  conv("conv1", {channels, 12, 3, 3, 3});
  for (std::size_t i = 0; i <= last; ++i) {
    const std::string stage = "downsamples." + std::to_string(i) + ".downsamples.";
    const std::int64_t out = encoder_dim * multiples[i];
    for (std::int64_t k = 0; k < residual_blocks; ++k, channels = out)
      residual(stage + std::to_string(k), out, channels);
    const std::string down = stage + std::to_string(residual_blocks);
    if (i < last) conv(down + ".resample.1", {out, out, 3, 3});
    if (i == 1 || i == 2) conv(down + ".time_conv", {out, out, 3, 1, 1});
  }
  middle(channels);
  head(96, channels);

  half = "decoder.";
  channels = decoder_dim * multiples[last];
  conv("conv1", {channels, 48, 3, 3, 3});
  middle(channels);
  for (std::size_t i = 0; i <= last; ++i) {
    const std::string stage = "upsamples." + std::to_string(i) + ".upsamples.";
    const std::int64_t out = decoder_dim * multiples[last - i];
    for (std::int64_t k = 0; k <= residual_blocks; ++k, channels = out)
      residual(stage + std::to_string(k), out, channels);
    const std::string up = stage + std::to_string(residual_blocks + 1);
    if (i < last) conv(up + ".resample.1", {out, out, 3, 3});
    if (i < 2) conv(up + ".time_conv", {2 * out, out, 3, 1, 1});
  }
  head(12, channels);
  w.conv("conv1", {96, 96, 1, 1, 1});
  w.conv("conv2", {48, 48, 1, 1, 1});
  return w;
}

}  // namespace magi
