// SPDX-License-Identifier: Apache-2.0
// The Wan 2.2 video autoencoder (model.md section 6): the encoder makes latents of reference images and
// videos, the full decoder is the slow alternative to the turbo decoder. All in f32; sizes are the
// checkpoint's.
#pragma once

#include <filesystem>
#include <optional>
#include <vector>

#include "model/video_decoder.h"
#include "model/wan_blocks.h"

namespace magi {

class WanEncoder {
 public:
  /// `Wan2.2_VAE.pth`.
  static WanEncoder load(Ops& ops, const std::filesystem::path& file);
  explicit WanEncoder(const WeightLoader& weights);

  /// video [3,T,H,W] (a leading axis of 1 is fine), f32 on the host in [−1,1]; T = 1 + 4k, H and W multiples
  /// of 16 → normalised latent [48, 1+k, H/16, W/16], f32 on the host. Four frames are encoded at a time.
  Tensor encode(Ops& ops, const Tensor& video) const;

 private:
  struct Downsampler {
    ConvWeight space;
    std::optional<ConvWeight> time;
  };
  struct Stage {
    std::vector<wan::ResidualBlock> blocks;
    std::optional<Downsampler> down;
    ConvWeight average;  ///< the shortcut around the stage
  };
  Tensor encode_chunk(Ops& ops, wan::History& history, Tensor x) const;
  Tensor run(Ops& ops, const Stage& stage, wan::History& history, Tensor x) const;

  ConvWeight conv_in_;
  std::vector<Stage> stages_;
  wan::Middle middle_;
  wan::Head head_;
  ConvWeight moments_;
};

class WanDecoder final : public VideoDecoder {
 public:
  /// `Wan2.2_VAE.pth`.
  static WanDecoder load(Ops& ops, const std::filesystem::path& file);
  explicit WanDecoder(const WeightLoader& weights);

 protected:
  /// One latent at a time.
  void decode_chunks(Ops& ops, const Tensor& latent, const ChunkSink& sink) const override;

 private:
  struct Upsampler {
    ConvWeight space;
    std::optional<ConvWeight> time;
    ConvWeight duplicate;  ///< the shortcut around the stage
  };
  struct Stage {
    std::vector<wan::ResidualBlock> blocks;
    std::optional<Upsampler> up;
  };
  Tensor run(Ops& ops, const Stage& stage, wan::History& history, bool first, Tensor x) const;

  ConvWeight latent_in_, conv_in_;
  wan::Middle middle_;
  std::vector<Stage> stages_;
  wan::Head head_;
};

}  // namespace magi
