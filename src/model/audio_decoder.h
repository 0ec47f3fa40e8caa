// SPDX-License-Identifier: Apache-2.0
// The Oobleck decoder of Stable Audio Open: latents to a waveform (model.md section 6). Always in f32.
#pragma once

#include <filesystem>
#include <optional>
#include <vector>

#include "io/config.h"
#include "model/weight_loader.h"

namespace magi {

/// From `model_config.json`; the lists in the decoder's order.
struct AudioConfig {
  std::int64_t sample_rate = 44100;
  std::int64_t latent_channels = 64;
  std::int64_t out_channels = 2;
  std::int64_t first_channels = 2048;  ///< of the first convolution
  struct Stage {
    std::int64_t channels = 0;
    std::int64_t stride = 1;
  };
  std::vector<Stage> stages;
  bool final_tanh = false;
};
AudioConfig read_audio_config(const ConfigNode& config);

class AudioDecoder {
 public:
  /// `model_config.json` and `model.safetensors` of a Stable Audio Open directory.
  static AudioDecoder load(Ops& ops, const std::filesystem::path& directory);
  /// `weights`: with the names `layers.…`.
  AudioDecoder(const WeightLoader& weights, AudioConfig config);

  const AudioConfig& config() const { return config_; }

  /// latent [A,64] (a leading axis of 1 is fine), f32 on the host → waveform [2, n], f32 on the host,
  /// nominally in [−1,1]; n is A times the product of the strides when those are even.
  Tensor decode(Ops& ops, const Tensor& latent) const;

 private:
  struct Snake {
    Tensor alpha, beta;
  };
  struct Residual {
    Snake snake1, snake2;
    ConvWeight conv7, conv1;
    std::int64_t dilation = 1;
  };
  struct Stage {
    Snake snake;
    ConvWeight upsample;
    std::int64_t stride = 1;
    std::vector<Residual> residuals;
  };
  Tensor run(Ops& ops, const Residual& residual, Tensor x) const;

  AudioConfig config_;
  ConvWeight conv_in_, conv_out_;
  std::vector<Stage> stages_;
  Snake snake_out_;
};

}  // namespace magi
