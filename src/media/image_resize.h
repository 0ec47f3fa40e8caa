// SPDX-License-Identifier: Apache-2.0
// Reference pictures brought to a clip's size, to the bit as Pillow does it (pipeline.md section 5).
#pragma once

#include <cstdint>

#include "core/tensor.h"

namespace magi {

/// Lanczos-3 with 8-bit rounding after each axis, horizontal first. u8 [H,W,3] → u8 [height,width,3].
Tensor resize_lanczos(const Tensor& image, std::int64_t height, std::int64_t width);

/// The picture on the white canvas that belongs to it: the canvas has the picture's shape and, as its longer
/// side, the clip's longer side. u8 [H,W,3] → u8. Throws Error when the canvas would be less than a pixel
/// wide.
Tensor letterbox(const Tensor& image, std::int64_t clip_width, std::int64_t clip_height);

/// letterbox(), resized again so that both sides are multiples of 32 (rounded down): what the image encoder
/// takes, before [−1,1]. Throws Error when the picture is so elongated that a side falls below 32.
Tensor prepare_reference_image(const Tensor& image, std::int64_t clip_width, std::int64_t clip_height);

}  // namespace magi
