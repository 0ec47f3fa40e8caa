// SPDX-License-Identifier: Apache-2.0
// Reading our own clips back: what they hold, their frames, their sound.
#pragma once

#include <cstdint>
#include <filesystem>
#include <limits>
#include <map>
#include <string>

#include "core/tensor.h"
#include "media/video_writer.h"

namespace magi {

struct ClipInfo {
  std::string video_codec;   ///< "h264"
  std::string pixel_format;  ///< "yuv420p"
  std::int64_t width = 0;
  std::int64_t height = 0;
  std::int64_t frames = 0;
  FrameRate fps;
  double video_seconds = 0;
  std::string audio_codec;  ///< "aac"; empty: no sound
  int sample_rate = 0;
  int channels = 0;
  double audio_seconds = 0;
  std::map<std::string, std::string> metadata;  ///< what VideoOptions::metadata gave
};

/// From the index of an MP4 file, nothing decoded. Throws Error "PATH: …" when it is none, or cut short.
ClipInfo probe_clip(const std::filesystem::path& path);

/// The first `max_frames` frames, u8 [T,H,W,3] RGB.
Tensor decode_frames(const std::filesystem::path& path,
                     std::int64_t max_frames = std::numeric_limits<std::int64_t>::max());

/// All sound, f32 [samples,channels], without the codec's own lead-in. Throws Error when the clip has none.
Tensor decode_audio(const std::filesystem::path& path);

}  // namespace magi
