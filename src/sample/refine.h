// SPDX-License-Identifier: Apache-2.0
// From the preview's latents to the refiner's starting point (pipeline.md section 6).
#pragma once

#include <cstdint>
#include <vector>

#include "core/tensor.h"

namespace magi {

/// Trilinear, corners aligned: [C,T,H,W] f32 on the host → [C, 2T−1, height, width]. A leading axis of 1 is
/// kept.
Tensor upsample_latent(const Tensor& latent, std::int64_t height, std::int64_t width);

/// Signal shares of the zero-terminal-SNR DDPM schedule, clean first: 1000 entries from 0.99957 down to 0.
std::vector<float> zero_snr_table();

/// latent·s + noise·√(1−s²) with s = zero_snr_table()[index]; f32, equal shapes. Index 0…999, else Error.
Tensor renoise(const Tensor& latent, const Tensor& noise, std::int64_t index);

}  // namespace magi
