// SPDX-License-Identifier: Apache-2.0
// Finished clips: MP4 with H.264 and, optionally, AAC sound.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <optional>
#include <string>

#include "core/tensor.h"

namespace magi {

struct FrameRate {
  int numerator = 25;
  int denominator = 1;
};

struct VideoOptions {
  int width = 0;  ///< of the frames given
  int height = 0;
  FrameRate fps;
  int output_width = 0;  ///< of the file; 0: as given. Frames are resized bilinearly.
  int output_height = 0;
  double crf = 18;  ///< x264's constant rate factor, 0 (best) … 51
  /// `title`, `comment`, `description`: what MP4 has fields for. Any UTF-8 without NUL.
  std::map<std::string, std::string> metadata;
};

struct AudioOptions {
  int sample_rate = 44100;
  int channels = 2;
  int bit_rate = 192'000;
};

/// Writes a clip frame by frame. Frames and sound may come in any order and in pieces of any size: the same
/// bytes result, on any machine with the same FFmpeg and x264 (see av::init, and the fixed threads in
/// video_writer.cpp). The file appears under its name only in finish(); without it nothing stays. Every
/// failure throws Error that names the path.
class VideoWriter {
 public:
  /// Opens file and encoders. Output sides must be even (4:2:0), 2 … 16,384.
  VideoWriter(const std::filesystem::path& path, const VideoOptions& video,
              const std::optional<AudioOptions>& audio = std::nullopt);
  ~VideoWriter();

  /// u8 [T,height,width,3] RGB.
  void write_frames(const Tensor& frames);
  /// f32 [samples,channels] in −1 … 1; values beyond are clipped, values that are not finite refused.
  void write_audio(const Tensor& samples);
  /// Encodes what is left, puts the index in front (players may start before they have the whole file),
  /// renames.
  void finish();

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace magi
