// SPDX-License-Identifier: Apache-2.0
// One encoder and its track in a file. Internal to media.
#pragma once

#include <string>
#include <vector>

#include "media/av.h"
#include "media/video_writer.h"

namespace magi {

/// Opens an encoder by name, or explains that this FFmpeg lacks it.
class Track {
 public:
  Track(AVFormatContext* muxer, const char* encoder, std::string name);

  AVCodecContext* codec() { return codec_.get(); }
  /// After codec() has been filled in: opens the encoder and describes the track to the muxer.
  void open(AVDictionary** options);
  /// Encodes one frame (null: the last ones) and hands the packets to the muxer.
  void encode(const AVFrame* frame);

 private:
  AVFormatContext* muxer_;
  std::string name_;  // of the file, for messages
  const AVCodec* encoder_;
  av::Codec codec_;
  av::Filter filter_;
  av::Packet packet_;
  AVStream* stream_ = nullptr;
};

class VideoTrack {
 public:
  VideoTrack(AVFormatContext* muxer, const VideoOptions& options, const std::string& name);
  void write(const std::uint8_t* rgb);
  void flush() { track_.encode(nullptr); }
  std::int64_t frames() const { return next_; }

 private:
  int width_, height_;
  Track track_;
  av::Scaler scaler_;
  av::Frame frame_;
  std::int64_t next_ = 0;
};

class AudioTrack {
 public:
  AudioTrack(AVFormatContext* muxer, const AudioOptions& options, const std::string& name);
  /// Interleaved samples.
  void write(const float* samples, std::int64_t count);
  void flush();
  int channels() const { return channels_; }

 private:
  void encode(int count);

  int channels_;
  std::string name_;
  Track track_;
  av::Frame frame_;
  int frame_size_ = 0;
  int filled_ = 0;  // samples waiting in frame_
  std::int64_t next_ = 0;
};

}  // namespace magi
