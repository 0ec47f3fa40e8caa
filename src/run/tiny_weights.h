// SPDX-License-Identifier: Apache-2.0
// Random tensors by name, and the parts of a tiny root made of them.
#pragma once

#include <cmath>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <utility>
#include <vector>

#include "sample/noise.h"

namespace magi {

using NamedTensors = std::vector<std::pair<std::string, Tensor>>;

class WeightMaker {
 public:
  explicit WeightMaker(NoiseGenerator& noise) : noise_(noise) {}

  /// Gaussian around `mean`.
  void normal(const std::string& name, const Shape& shape, float deviation, float mean = 0,
              DType dtype = DType::f32) {
    Tensor t = noise_.randn(shape);
    for (float& v : t.values<float>()) v = mean + deviation * v;
    tensors_.emplace_back(name, t.to(dtype));
  }
  void constant(const std::string& name, const Shape& shape, float value) { normal(name, shape, 0, value); }
  /// NAME.weight [out, in], keeping the variance of what goes through it.
  void linear(const std::string& name, std::int64_t out, std::int64_t in, DType dtype = DType::f32) {
    normal(name + ".weight", {out, in}, 1 / std::sqrt(static_cast<float>(in)), 0, dtype);
  }
  /// NAME.weight and NAME.bias of a convolution [out, in, k…].
  void conv(const std::string& name, std::int64_t out, std::int64_t in, const Shape& kernel, float gain = 1) {
    Shape shape{out, in};
    shape.insert(shape.end(), kernel.begin(), kernel.end());
    normal(name + ".weight", shape, gain / std::sqrt(static_cast<float>(in * numel(kernel))));
    normal(name + ".bias", {out}, 0.02f);
  }
  NamedTensors take() { return std::move(tensors_); }

 private:
  NoiseGenerator& noise_;
  NamedTensors tensors_;
};

/// Each returns the part's weights for the sizes in tiny_config().
nlohmann::json tiny_config();
NamedTensors tiny_preview(NoiseGenerator& noise);
NamedTensors tiny_refiner(NoiseGenerator& noise);
nlohmann::json tiny_text_encoder_config();
nlohmann::json tiny_tokenizer();
NamedTensors tiny_text_encoder(NoiseGenerator& noise);
nlohmann::json tiny_turbo_config();
NamedTensors tiny_turbo_decoder(NoiseGenerator& noise);
nlohmann::json tiny_audio_config();
NamedTensors tiny_audio_decoder(NoiseGenerator& noise);
NamedTensors tiny_wan_vae(NoiseGenerator& noise);

}  // namespace magi
