// SPDX-License-Identifier: Apache-2.0
#include "media/video_writer.h"

extern "C" {
#include <libavutil/dict.h>
}

#include <algorithm>
#include <array>
#include <string_view>

#include "media/encoder.h"
#include "media/mux_file.h"

namespace magi {
namespace {

struct FreeMuxer {
  void operator()(AVFormatContext* p) const { avformat_free_context(p); }
};
using Muxer = std::unique_ptr<AVFormatContext, FreeMuxer>;

Muxer new_muxer(MuxFile& file, const std::string& name) {
  AVFormatContext* muxer = nullptr;
  av::check(avformat_alloc_output_context2(&muxer, nullptr, "mp4", name.c_str()),
            fmt::format("{}: this build of FFmpeg cannot write MP4", name));
  file.attach(muxer);
  muxer->flags |= AVFMT_FLAG_BITEXACT;  // no dates, no versions
  muxer->max_interleave_delta = 0;      // no limit: order in the file must not depend on who wrote first
  return Muxer(muxer);
}

void check_options(const std::string& name, const VideoOptions& video,
                   const std::optional<AudioOptions>& audio) {
  require(video.width > 0 && video.height > 0 && video.width < 32768 && video.height < 32768,
          "{}: a video of {}x{} cannot be written", name, video.width, video.height);
  require(video.output_width >= 0 && video.output_height >= 0, "{}: a video of {}x{} cannot be written", name,
          video.output_width, video.output_height);
  const int width = video.output_width > 0 ? video.output_width : video.width;
  const int height = video.output_height > 0 ? video.output_height : video.height;
  require(width % 2 == 0 && height % 2 == 0 && width <= 16384 && height <= 16384,
          "{}: a video of {}x{} cannot be written: H.264 needs even sides of at most 16384 pixels", name,
          width, height);
  require(video.fps.numerator > 0 && video.fps.denominator > 0, "{}: a frame rate of {}/{} is not positive",
          name, video.fps.numerator, video.fps.denominator);
  require(video.crf >= 0 && video.crf <= 51, "{}: quality (crf) {} is not within 0 … 51", name, video.crf);
  if (audio) {
    require(audio->sample_rate > 0 && audio->bit_rate > 0 && (audio->channels == 1 || audio->channels == 2),
            "{}: audio of {} channels at {} Hz, {} bit/s cannot be written", name, audio->channels,
            audio->sample_rate, audio->bit_rate);
  }
  for (const auto& [key, value] : video.metadata) {
    constexpr std::array<std::string_view, 3> kFields{"title", "comment", "description"};
    require(std::ranges::find(kFields, key) != kFields.end(),
            "{}: MP4 has no metadata field '{}' (title, comment, description)", name, key);
    require(value.find('\0') == std::string::npos, "{}: metadata '{}' contains a NUL", name, key);
  }
}

}  // namespace

struct VideoWriter::State {
  State(const std::filesystem::path& path, const VideoOptions& options,
        const std::optional<AudioOptions>& sound)
      : name(path.string()),
        width(options.width),
        height(options.height),
        file((check_options(name, options, sound), path)),
        muxer(new_muxer(file, name)),
        video(muxer.get(), options, name) {
    if (sound) audio.emplace(muxer.get(), *sound, name);
    for (const auto& [key, value] : options.metadata) {
      av::check(av_dict_set(&muxer->metadata, key.c_str(), value.c_str(), 0), name);
    }
    AVDictionary* flags = nullptr;
    av_dict_set(&flags, "movflags", "+faststart", 0);
    const int code = avformat_write_header(muxer.get(), &flags);
    av_dict_free(&flags);
    file.check();
    av::check(code, fmt::format("{}: cannot write", name));
  }

  /// Runs one step of writing; the system's reason for a failed write is better than the muxer's.
  template <typename Step>
  void guarded(Step step) {
    require(!broken, "{}: nothing more can be written (finished, or failed before)", name);
    broken = true;
    try {
      step();
    } catch (const Error&) {
      file.check();
      throw;
    }
    file.check();
    broken = false;
  }

  std::string name;
  int width, height;
  MuxFile file;
  Muxer muxer;
  VideoTrack video;
  std::optional<AudioTrack> audio;
  bool broken = false;
};

VideoWriter::VideoWriter(const std::filesystem::path& path, const VideoOptions& video,
                         const std::optional<AudioOptions>& audio)
    : state_(std::make_unique<State>(path, video, audio)) {}

VideoWriter::~VideoWriter() = default;

void VideoWriter::write_frames(const Tensor& frames) {
  State& s = *state_;
  require(frames.rank() == 4 && frames.dtype() == DType::u8 && frames.dim(1) == s.height &&
              frames.dim(2) == s.width && frames.dim(3) == 3 && frames.device().kind == Device::Kind::cpu,
          "{}: expected frames u8 [T,{},{},3], got {} {}", s.name, s.height, s.width, name_of(frames.dtype()),
          to_string(frames.shape()));
  s.guarded([&] {
    const std::uint8_t* rgb = frames.data<std::uint8_t>();
    for (std::int64_t t = 0; t < frames.dim(0); ++t) s.video.write(rgb + t * frames.pitch());
  });
}

void VideoWriter::write_audio(const Tensor& samples) {
  State& s = *state_;
  require(s.audio.has_value(), "{}: was opened without audio", s.name);
  require(samples.rank() == 2 && samples.dtype() == DType::f32 && samples.dim(1) == s.audio->channels() &&
              samples.device().kind == Device::Kind::cpu && samples.contiguous(),
          "{}: expected audio f32 [samples,{}], got {} {}", s.name, s.audio->channels(),
          name_of(samples.dtype()), to_string(samples.shape()));
  s.guarded([&] { s.audio->write(samples.data<float>(), samples.dim(0)); });
}

void VideoWriter::finish() {
  State& s = *state_;
  require(s.video.frames() > 0, "{}: no frames were written", s.name);
  s.guarded([&] {
    s.video.flush();
    if (s.audio) s.audio->flush();
    av::check(av_write_trailer(s.muxer.get()), fmt::format("{}: cannot write", s.name));
    s.file.commit();
  });
  s.broken = true;  // the file has its name now
}

}  // namespace magi
