// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <memory>
#include <string>
#include <vector>

#include "model/tokens.h"
#include "model/video_decoder.h"
#include "ops/ops.h"
#include "support/backend.h"
#include "support/golden.h"

namespace magi {

/// A backend and its scratch memory.
class DecoderScene {
 public:
  DecoderScene() : arena_(test_arena()), ops_(make_ops(arena_)) {}
  Ops& ops() { return *ops_; }
  Arena& arena() { return arena_; }

 private:
  Arena arena_;
  std::unique_ptr<Ops> ops_;
};

/// [T,H,W,C] on the host → [C,T,H,W].
inline Tensor channels_first(const Tensor& video) {
  const LatentGrid grid{video.dim(0), video.dim(1), video.dim(2)};
  return latent_from_cells(video.reshape({grid.cells(), video.dim(3)}), grid);
}

/// decode() gives decode_f32()'s values rounded to pixels; how many frames there were.
inline std::int64_t rounded_frames(const VideoDecoder& decoder, Ops& ops, const Tensor& latent) {
  const Tensor video = decoder.decode_f32(ops, latent);
  std::int64_t done = 0, frames = 0;
  decoder.decode(ops, latent, [&](const Tensor& pixels) {
    frames += pixels.dim(0);
    for (const std::uint8_t p : pixels.values<std::uint8_t>())
      ASSERT_EQ(p, static_cast<int>(255 * std::clamp(video.data<float>()[done++] / 2 + 0.5f, 0.0f, 1.0f)));
  });
  EXPECT_EQ(done, video.numel());
  return frames;
}

/// What follows `prefix` in the names of a case: its lengths.
inline std::vector<std::string> lengths_in(const GoldenCase& golden, const std::string& prefix) {
  std::vector<std::string> lengths;
  for (const auto& [name, info] : golden.store().entries())
    if (name.starts_with(prefix)) lengths.push_back(name.substr(prefix.size()));
  return lengths;
}

}  // namespace magi
