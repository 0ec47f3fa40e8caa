// SPDX-License-Identifier: Apache-2.0
#include "support/clip_reader.h"

extern "C" {
#include <libavutil/dict.h>
}

#include <algorithm>
#include <array>
#include <functional>
#include <optional>
#include <string_view>
#include <vector>

#include "media/av.h"

namespace magi {
namespace {

struct CloseDemuxer {
  void operator()(AVFormatContext* p) const { avformat_close_input(&p); }
};
using Demuxer = std::unique_ptr<AVFormatContext, CloseDemuxer>;

/// MP4 by name and local files only: whatever a file claims to be, no other demuxer or protocol is tried.
Demuxer open(const std::string& name) {
  av::init();
  AVFormatContext* demuxer = nullptr;
  AVDictionary* options = nullptr;
  av_dict_set(&options, "protocol_whitelist", "file", 0);
  const int code =
      avformat_open_input(&demuxer, ("file:" + name).c_str(), av_find_input_format("mp4"), &options);
  av_dict_free(&options);
  av::check(code, fmt::format("{}: cannot be read as MP4", name));
  return Demuxer(demuxer);
}

AVStream* find_stream(const AVFormatContext* demuxer, AVMediaType type) {
  for (unsigned i = 0; i < demuxer->nb_streams; ++i) {
    if (demuxer->streams[i]->codecpar->codec_type == type) return demuxer->streams[i];
  }
  return nullptr;
}

AVStream* video_stream(const AVFormatContext* demuxer, const std::string& name) {
  AVStream* stream = find_stream(demuxer, AVMEDIA_TYPE_VIDEO);
  require(stream != nullptr, "{}: holds no video", name);
  return stream;
}

double seconds(const AVStream* stream) {
  return static_cast<double>(stream->duration) * av_q2d(stream->time_base);
}

const char* or_unknown(const char* text) {
  return text != nullptr ? text : "unknown";
}

/// Calls `take` with every frame of one stream until it returns false.
void decode(AVFormatContext* demuxer, const AVStream* stream, const std::string& name,
            const std::function<bool(const AVFrame*)>& take) {
  const AVCodec* decoder = avcodec_find_decoder(stream->codecpar->codec_id);
  require(decoder != nullptr, "{}: this build of FFmpeg cannot decode {}", name,
          avcodec_get_name(stream->codecpar->codec_id));
  const av::Codec codec = av::new_codec(decoder);
  av::check(avcodec_parameters_to_context(codec.get(), stream->codecpar), name);
  codec->pkt_timebase = stream->time_base;
  av::check(avcodec_open2(codec.get(), decoder, nullptr), name);
  const av::Packet packet = av::new_packet();
  const av::Frame frame = av::new_frame();
  for (bool more = true; more;) {
    const int code = av_read_frame(demuxer, packet.get());
    more = code >= 0;
    if (code != AVERROR_EOF) av::check(code, name);
    if (more && packet->stream_index != stream->index) {
      av_packet_unref(packet.get());
      continue;
    }
    av::check(avcodec_send_packet(codec.get(), more ? packet.get() : nullptr), name);
    av_packet_unref(packet.get());
    while (true) {
      const int received = avcodec_receive_frame(codec.get(), frame.get());
      if (received == AVERROR(EAGAIN) || received == AVERROR_EOF) break;
      av::check(received, name);
      if (!take(frame.get())) return;
    }
  }
}

}  // namespace

ClipInfo probe_clip(const std::filesystem::path& path) {
  const std::string name = path.string();
  const Demuxer demuxer = open(name);
  const AVStream* video = video_stream(demuxer.get(), name);
  ClipInfo info;
  info.video_codec = avcodec_get_name(video->codecpar->codec_id);
  // The index has no pixel format; the H.264 configuration does, but only a decoder reads it.
  av::check(avformat_find_stream_info(demuxer.get(), nullptr), name);
  info.pixel_format = or_unknown(av_get_pix_fmt_name(static_cast<AVPixelFormat>(video->codecpar->format)));
  info.width = video->codecpar->width;
  info.height = video->codecpar->height;
  info.frames = video->nb_frames;
  info.fps = {video->avg_frame_rate.num, video->avg_frame_rate.den};
  info.video_seconds = seconds(video);
  if (const AVStream* audio = find_stream(demuxer.get(), AVMEDIA_TYPE_AUDIO)) {
    info.audio_codec = avcodec_get_name(audio->codecpar->codec_id);
    info.sample_rate = audio->codecpar->sample_rate;
    info.channels = audio->codecpar->ch_layout.nb_channels;
    info.audio_seconds = seconds(audio);
  }
  const AVDictionaryEntry* entry = nullptr;
  while ((entry = av_dict_get(demuxer->metadata, "", entry, AV_DICT_IGNORE_SUFFIX)) != nullptr) {
    constexpr std::array<std::string_view, 3> kContainer{"major_brand", "minor_version", "compatible_brands"};
    if (std::ranges::find(kContainer, entry->key) == kContainer.end())
      info.metadata[entry->key] = entry->value;
  }
  return info;
}

Tensor decode_frames(const std::filesystem::path& path, std::int64_t max_frames) {
  const std::string name = path.string();
  const Demuxer demuxer = open(name);
  const AVStream* video = video_stream(demuxer.get(), name);
  const int width = video->codecpar->width, height = video->codecpar->height;
  const std::int64_t count = std::min<std::int64_t>(video->nb_frames, max_frames);
  require(count > 0 && width > 0 && height > 0 && count <= avio_size(demuxer->pb), "{}: holds no frames",
          name);
  Tensor frames = Tensor::empty(DType::u8, {count, height, width, 3});

  std::optional<av::YuvToRgb> to_rgb;
  std::int64_t done = 0;
  decode(demuxer.get(), video, name, [&](const AVFrame* frame) {
    require(frame->width == width && frame->height == height, "{}: frames change their size", name);
    if (!to_rgb) {
      const int matrix = frame->colorspace == AVCOL_SPC_BT709 ? SWS_CS_ITU709 : SWS_CS_ITU601;
      to_rgb.emplace(*frame, av::Colour{matrix, frame->color_range == AVCOL_RANGE_JPEG}, true);
    }
    to_rgb->convert(*frame, frames.data<std::uint8_t>() + done * frames.pitch());
    return ++done < count;
  });
  require(done == count, "{}: {} of {} frames can be decoded", name, done, count);
  return frames;
}

Tensor decode_audio(const std::filesystem::path& path) {
  const std::string name = path.string();
  const Demuxer demuxer = open(name);
  const AVStream* audio = find_stream(demuxer.get(), AVMEDIA_TYPE_AUDIO);
  require(audio != nullptr, "{}: holds no sound", name);
  const int channels = audio->codecpar->ch_layout.nb_channels;
  std::vector<float> samples;
  decode(demuxer.get(), audio, name, [&](const AVFrame* frame) {
    require(frame->format == AV_SAMPLE_FMT_FLTP && frame->ch_layout.nb_channels == channels,
            "{}: sound of an unexpected kind", name);
    for (int i = 0; i < frame->nb_samples; ++i) {
      for (int c = 0; c < channels; ++c) {
        samples.push_back(reinterpret_cast<const float*>(frame->extended_data[c])[i]);
      }
    }
    return true;
  });
  return Tensor::of<float>(samples, {static_cast<std::int64_t>(samples.size()) / channels, channels});
}

}  // namespace magi
