// SPDX-License-Identifier: Apache-2.0
// What a picture file says about itself, read before anything is decoded or allocated. Internal to media.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace magi {

using Bytes = std::span<const std::uint8_t>;

enum class ImageFormat : std::uint8_t { png, jpeg, webp };

struct ImageHeader {
  ImageFormat format = ImageFormat::png;
  std::int64_t width = 0;  ///< of the whole picture as stored, before orientation
  std::int64_t height = 0;
  int orientation = 1;    ///< EXIF's 1 … 8
  bool animated = false;  ///< more than one frame
  Bytes picture{};        ///< the file without what follows the picture
  /// A PNG without its texts, profiles and whatever else pixels do not need: a decoder would inflate them,
  /// and a few kilobytes can become gigabytes. Else empty.
  std::vector<std::uint8_t> pixels_only{};
  /// An animated WebP's first frame as a WebP of its own, and its place in the picture. Else empty.
  std::vector<std::uint8_t> first_frame{};
  std::int64_t frame_x = 0;
  std::int64_t frame_y = 0;
};

/// Recognises PNG, JPEG and WebP by content and walks the file to its end. Throws Error "NAME: …" for any
/// other content and for files that end early.
ImageHeader parse_image_header(Bytes file, const std::string& name);

}  // namespace magi
