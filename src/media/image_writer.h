// SPDX-License-Identifier: Apache-2.0
// Single frames as picture files: thumbnails, last frames, test data. Equal frames give equal bytes.
#pragma once

#include <cstdint>
#include <filesystem>
#include <vector>

#include "core/tensor.h"

namespace magi {

/// u8 [H,W,3] → a PNG file, lossless.
std::vector<std::uint8_t> encode_png(const Tensor& frame);

/// u8 [H,W,3] → a JPEG file (4:4:4). `quality` 1 (smallest) … 100 (best).
std::vector<std::uint8_t> encode_jpeg(const Tensor& frame, int quality = 90);

/// Written beside and renamed; throws Error that names the path.
void write_png(const std::filesystem::path& path, const Tensor& frame);
void write_jpeg(const std::filesystem::path& path, const Tensor& frame, int quality = 90);

}  // namespace magi
