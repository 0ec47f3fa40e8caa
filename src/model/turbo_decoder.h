// SPDX-License-Identifier: Apache-2.0
// The turbo video decoder: a small non-causal convolutional decoder with a sliding window over time (model.md
// section 6).
#pragma once

#include <filesystem>
#include <optional>
#include <vector>

#include "io/config.h"
#include "model/turbo_tiles.h"
#include "model/video_decoder.h"
#include "model/weight_loader.h"

namespace magi {

/// From `turbo_vae/*.json`; all lists in the order that the decoder walks them.
struct TurboConfig {
  struct Block {
    std::int64_t channels = 0;
    std::int64_t resnets = 0;
    bool upsample_space = false;
    bool upsample_time = false;
    bool depthwise = false;
  };
  std::int64_t mid_resnets = 0;
  bool mid_depthwise = false;
  std::vector<Block> blocks;
  std::int64_t depthwise_kernel = 3;
  float resnet_norm_eps = 1e-6f;
  std::int64_t first_chunk = 3;
  std::int64_t step = 5;
};
/// Throws Error for what this decoder does not do: causal convolutions, other patch sizes or compression
/// ratios.
TurboConfig read_turbo_config(const ConfigNode& config);

/// One window: latents [first, end), of whose frames the outer ones, which lack context, are dropped.
struct TurboWindow {
  std::int64_t first = 0, end = 0;
  std::int64_t drop_front = 0, drop_back = 0;
  bool opens_clip = false;  ///< latent 0 gives one frame; as mere context it gives four
};
/// The windows of T latents. Indices from T on stand for repetitions of the last latent.
std::vector<TurboWindow> plan_windows(std::int64_t latents, const TurboConfig& config);
/// Its latents [t,H,W,C], of [T,H,W,C] on the host.
Tensor window_input(const Tensor& latent, const TurboWindow& window);

class TurboDecoder final : public VideoDecoder {
 public:
  /// The directory's only `*.json` and its `checkpoint.ckpt`. `dtype`: f32, or bf16 as released.
  static TurboDecoder load(Ops& ops, const std::filesystem::path& directory, DType dtype);
  /// `weights`: below the state dict's prefix, i.e. with the names `decoder.…`.
  TurboDecoder(const WeightLoader& weights, TurboConfig config);

  const TurboConfig& config() const { return config_; }
  /// Tiles of the picture that ranks decode apart, instead of those that are quickest by choose_tiling.
  void set_tiling(TurboTiling tiling) { tiling_ = tiling; }

  /// One window, no frames dropped. x [t,H,W,48] de-normalised, where the backend computes → [t',16H,16W,3];
  /// the very first latent of a clip gives one frame, every other one four.
  Tensor decode_window(Ops& ops, Tensor x, bool first) const;

 protected:
  void decode_chunks(Ops& ops, const Tensor& latent, const ChunkSink& sink) const override;
  void decode_shared(Ops& ops, const Tensor& latent, const FrameSink& sink,
                     const Group& ranks) const override;

 private:
  /// A dense convolution, or a depthwise one followed by a pointwise one.
  struct Conv {
    std::optional<ConvWeight> depthwise;
    ConvWeight dense;
  };
  struct Resnet {
    Activation first_activation = Activation::silu;
    Conv conv1, conv2;
    std::optional<Conv> shortcut;
  };
  struct Block {
    std::optional<Resnet> conv_in;
    std::optional<Conv> time_conv;
    std::optional<Conv> space_conv;
    std::vector<Resnet> resnets;
  };
  Conv load_conv(const WeightLoader& w, std::int64_t out, std::int64_t in, std::int64_t kernel,
                 bool depthwise) const;
  Resnet load_resnet(const WeightLoader& w, std::int64_t out, std::int64_t in, bool depthwise,
                     Activation first) const;
  Tensor run(Ops& ops, const Conv& conv, Tensor x) const;
  Tensor run(Ops& ops, const Resnet& resnet, Tensor x) const;

  TurboConfig config_;
  std::optional<TurboTiling> tiling_;
  DType dtype_;
  Conv conv_in_;
  std::vector<Resnet> mid_;
  std::vector<Block> blocks_;
  Conv conv_out_;
};

}  // namespace magi
