// SPDX-License-Identifier: Apache-2.0
// What a clip's files are called and hold, before the first and after the last step.
#pragma once

#include <filesystem>

#include "core/tensor.h"
#include "media/video_writer.h"
#include "run/request.h"
#include "sample/preview_sampler.h"

namespace magi {

/// Throws Error for the name of another kind of file: players go by the name, and a clip is an MP4.
void require_mp4(const std::filesystem::path& output);

/// Fills in the SHA-256 of the request's pictures, or throws Error where it says that they are others.
void identify_images(Request& request);

/// The MP4 of a request at `fps` (the refiner doubles it), with the request in its metadata.
VideoOptions video_options(const Request& request, double fps);

/// latents.safetensors in `directory`, which is made.
std::filesystem::path latents_file(const std::filesystem::path& directory);
/// Writes it; `refined` may be undefined.
void save_latents(const std::filesystem::path& directory, const Latents& preview, const Tensor& refined);

}  // namespace magi
