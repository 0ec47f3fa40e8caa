// SPDX-License-Identifier: Apache-2.0
// Sound without pictures.
#pragma once

#include <filesystem>

#include "core/tensor.h"

namespace magi {

/// f32 [samples, channels] in −1 … 1 (beyond is clipped) → 16-bit PCM WAV. Written beside and renamed. Throws
/// Error that names the path; also when a sample is not finite, or when the file would pass WAV's 4 GiB.
void write_wav(const std::filesystem::path& path, const Tensor& audio, int sample_rate);

}  // namespace magi
