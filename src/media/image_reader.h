// SPDX-License-Identifier: Apache-2.0
// Pictures from files: PNG, JPEG and WebP, recognised by content, decoded from memory.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>

#include "core/tensor.h"
#include "io/mapped_file.h"

namespace magi {

struct ImageOptions {
  /// Larger pictures are refused by what their header says, before memory is taken.
  std::int64_t max_pixels = 100'000'000;
  /// Called with one line when only a part of the file is used (animations: the first frame).
  std::function<void(std::string_view)> warn;
};

/// A file that may be a picture: regular, and no larger than an uncompressed picture of max_pixels would be.
std::shared_ptr<const MappedFile> open_image(const std::filesystem::path& path);

/// u8 [H,W,3] sRGB as a viewer shows it: EXIF orientation applied, alpha over white, grey, palette, CMYK and
/// 16-bit pictures converted; colour profiles are ignored. Throws Error "NAME: …" when the file cannot be
/// read, is no such picture, is damaged or cut short, or is too large.
Tensor read_image(const std::filesystem::path& path, const ImageOptions& options = {});

/// The same from memory; `name` stands in messages.
Tensor read_image(std::span<const std::uint8_t> file, const std::string& name,
                  const ImageOptions& options = {});

}  // namespace magi
