// SPDX-License-Identifier: Apache-2.0
// Sample-rate conversion through the Fourier transform.
#pragma once

#include <cstdint>

#include "core/tensor.h"

namespace magi {

/// Samples of the finished 44.1 kHz track for n samples of the audio decoder (⌊n·441/512⌋, model.md section
/// 6).
std::int64_t resampled_length(std::int64_t decoder_samples);

/// waveform f32 [channels, n] (as the audio decoder gives it) → f32 [samples, channels] (as files want it).
/// The spectrum is cut or padded with zeros and transformed back, as scipy.signal.resample does; computed in
/// double. Throws Error on empty input, non-positive `samples` or another dtype.
Tensor resample(const Tensor& waveform, std::int64_t samples);

}  // namespace magi
