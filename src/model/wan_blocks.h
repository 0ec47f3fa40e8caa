// SPDX-License-Identifier: Apache-2.0
// Parts that the encoder and the decoder of the Wan 2.2 autoencoder share (model.md section 6). All in f32.
#pragma once

#include <optional>
#include <unordered_map>
#include <vector>

#include "model/weight_loader.h"
#include "ops/ops.h"

namespace magi::wan {

/// A video is coded in chunks of frames. Convolutions over time look back only; what each of them needs from
/// earlier chunks is kept here, by convolution. One History serves one video.
class History {
 public:
  /// Convolution that keeps the size: space padded with zeros, time with the frames before (zeros before the
  /// first).
  Tensor causal_conv(Ops& ops, Tensor x, const ConvWeight& conv);
  /// Kernel 3 and stride 2 over time: frames 2j−2, 2j−1, 2j → j. A video's first frame passes unchanged.
  Tensor halve_time(Ops& ops, Tensor x, const ConvWeight& conv);

 private:
  std::unordered_map<const ConvWeight*, Tensor> past_;
};

struct ResidualBlock {
  Tensor gamma1, gamma2;
  ConvWeight conv1, conv2;
  std::optional<ConvWeight> shortcut;
  std::int64_t out = 0;
};
/// Self-attention among the pixels of each frame, one head.
struct AttentionBlock {
  Tensor gamma;
  LinearWeight qkv, proj;
};
struct Middle {
  ResidualBlock before, after;
  AttentionBlock attention;
};
/// Norm, SiLU, convolution.
struct Head {
  Tensor gamma;
  ConvWeight conv;
};

/// First axis of a tensor: sizes are the checkpoint's.
std::int64_t channels_of(const WeightLoader& w, const std::string& tensor);

ResidualBlock load_residual(const WeightLoader& w, std::int64_t in);
/// Residual blocks 0, 1, … of a stage, as many as there are; `channels` becomes the last one's output.
std::vector<ResidualBlock> load_residuals(const WeightLoader& w, std::int64_t& channels);
Middle load_middle(const WeightLoader& w, std::int64_t channels);
Head load_head(const WeightLoader& w, std::int64_t channels, std::int64_t out);

Tensor run(Ops& ops, const ResidualBlock& block, History& history, Tensor x);
Tensor run(Ops& ops, const Middle& middle, History& history, Tensor x);
Tensor run(Ops& ops, const Head& head, History& history, Tensor x);

}  // namespace magi::wan
