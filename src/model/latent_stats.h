// SPDX-License-Identifier: Apache-2.0
// Video latents are used normalised, channel by channel; the autoencoders work on them as they are (model.md
// section 6).
#pragma once

#include <cstdint>

#include "core/tensor.h"

namespace magi {

inline constexpr std::int64_t kLatentChannels = 48;
/// What a latent stands for: frames but for the first one, and pixels on each side.
inline constexpr std::int64_t kFramesPerLatent = 4, kPixelsPerLatent = 16;

/// (x − mean)/std: cells [N,48] f32 on the host, in place.
void normalise_latent(Tensor& cells);
/// x·std + mean: cells [N,48] f32 on the host, in place.
void denormalise_latent(Tensor& cells);

}  // namespace magi
