// SPDX-License-Identifier: Apache-2.0
#include "media/encoder.h"

extern "C" {
#include <libavutil/channel_layout.h>
#include <libavutil/dict.h>
#include <libavutil/opt.h>
}

#include <algorithm>
#include <cmath>
#include <utility>

namespace magi {
namespace {

/// Equal files on any machine need more than x264's `deterministic`:
/// - the result depends on the number of frame threads and on the look-ahead: both are fixed, whatever
/// processors run
///   them;
/// - with SSSE3 and up intra modes are searched more widely, so SIMD stays at SSE2, which every x86-64 has
/// and whose
///   results are those of plain C (a quarter slower than AVX2);
/// - macroblock trees divide by approximate reciprocals, which differ between makers of processors (and with
/// AVX-512
///   core 164 reads memory that it never wrote): they are off.
constexpr int kVideoThreads = 4;
constexpr const char* kVideoParameters =
#if defined(__x86_64__)
    "asm=sse2:"
#endif
    "mbtree=0:sliced-threads=0:lookahead-threads=1:rc-lookahead=40:sync-lookahead=4";

}  // namespace

Track::Track(AVFormatContext* muxer, const char* encoder, std::string name)
    : muxer_(muxer), name_(std::move(name)), encoder_(avcodec_find_encoder_by_name(encoder)) {
  require(encoder_ != nullptr,
          "{}: this build of FFmpeg has no encoder {}: install FFmpeg's libraries with it (Debian, Ubuntu: "
          "libavcodec59 "
          "or libavcodec60)",
          name_, encoder);
  codec_ = av::new_codec(encoder_);
  packet_ = av::new_packet();
}

void Track::open(AVDictionary** options) {
  codec_->flags |= AV_CODEC_FLAG_BITEXACT;
  if (muxer_->oformat->flags & AVFMT_GLOBALHEADER) codec_->flags |= AV_CODEC_FLAG_GLOBAL_HEADER;
  const std::string what = fmt::format("{}: cannot start encoder {}", name_, encoder_->name);
  av::check(avcodec_open2(codec_.get(), encoder_, options), what);
  stream_ = avformat_new_stream(muxer_, nullptr);
  require(stream_ != nullptr, "{}: out of memory", name_);
  av::check(avcodec_parameters_from_context(stream_->codecpar, codec_.get()), what);
  // H.264's supplemental messages (type 6) hold nothing but x264's version and options.
  const char* filter = codec_->codec_type == AVMEDIA_TYPE_VIDEO ? "filter_units=remove_types=6" : "null";
  AVBSFContext* filtered = nullptr;
  av::check(av_bsf_list_parse_str(filter, &filtered), what);
  filter_.reset(filtered);
  av::check(avcodec_parameters_copy(filtered->par_in, stream_->codecpar), what);
  filtered->time_base_in = codec_->time_base;
  av::check(av_bsf_init(filtered), what);
  stream_->time_base = codec_->time_base;
  stream_->avg_frame_rate = codec_->framerate;
}

void Track::encode(const AVFrame* frame) {
  const std::string what = fmt::format("{}: cannot encode", name_);
  av::check(avcodec_send_frame(codec_.get(), frame), what);
  while (true) {
    const int code = avcodec_receive_packet(codec_.get(), packet_.get());
    if (code == AVERROR(EAGAIN) || code == AVERROR_EOF) return;
    av::check(code, what);
    // x264 leaves the duration open, and then a clip's last frame would have none.
    if (codec_->codec_type == AVMEDIA_TYPE_VIDEO) packet_->duration = 1;
    av::check(av_bsf_send_packet(filter_.get(), packet_.get()), what);
    while (av_bsf_receive_packet(filter_.get(), packet_.get()) >= 0) {
      av_packet_rescale_ts(packet_.get(), codec_->time_base, stream_->time_base);
      packet_->stream_index = stream_->index;
      av::check(av_interleaved_write_frame(muxer_, packet_.get()), fmt::format("{}: cannot write", name_));
    }
  }
}

VideoTrack::VideoTrack(AVFormatContext* muxer, const VideoOptions& options, const std::string& name)
    : width_(options.width), height_(options.height), track_(muxer, "libx264", name) {
  AVCodecContext* codec = track_.codec();
  codec->width = options.output_width > 0 ? options.output_width : options.width;
  codec->height = options.output_height > 0 ? options.output_height : options.height;
  codec->pix_fmt = AV_PIX_FMT_YUV420P;
  codec->time_base = {options.fps.denominator, options.fps.numerator};
  codec->framerate = {options.fps.numerator, options.fps.denominator};
  codec->sample_aspect_ratio = {1, 1};
  codec->color_range = AVCOL_RANGE_MPEG;
  codec->color_primaries = AVCOL_PRI_BT709;
  codec->color_trc = AVCOL_TRC_BT709;
  codec->colorspace = AVCOL_SPC_BT709;
  codec->chroma_sample_location = AVCHROMA_LOC_LEFT;
  codec->thread_count = kVideoThreads;
  codec->thread_type = FF_THREAD_FRAME;
  AVDictionary* parameters = nullptr;
  av_dict_set(&parameters, "preset", "medium", 0);
  av_dict_set(&parameters, "crf", fmt::format("{:.2f}", options.crf).c_str(), 0);
  av_dict_set(&parameters, "x264-params", kVideoParameters, 0);
  const std::unique_ptr<AVDictionary*, void (*)(AVDictionary**)> release(&parameters, av_dict_free);
  track_.open(&parameters);

  frame_ = av::new_picture(codec->width, codec->height, codec->pix_fmt);
  frame_->color_range = codec->color_range;
  frame_->colorspace = codec->colorspace;
  av::ScalerSide to{codec->width, codec->height, codec->pix_fmt};
  to.colour = {SWS_CS_ITU709, false};
  to.chroma_left = true;
  scaler_ = av::new_scaler({width_, height_}, to);
}

void VideoTrack::write(const std::uint8_t* rgb) {
  av::check(av_frame_make_writable(frame_.get()), "out of memory for video");
  const std::uint8_t* planes[4] = {rgb};
  const int pitches[4] = {width_ * 3};
  sws_scale(scaler_.get(), planes, pitches, 0, height_, frame_->data, frame_->linesize);
  frame_->pts = next_++;
  track_.encode(frame_.get());
}

AudioTrack::AudioTrack(AVFormatContext* muxer, const AudioOptions& options, const std::string& name)
    : channels_(options.channels), name_(name), track_(muxer, "aac", name), frame_(av::new_frame()) {
  AVCodecContext* codec = track_.codec();
  codec->sample_fmt = AV_SAMPLE_FMT_FLTP;
  codec->sample_rate = options.sample_rate;
  codec->bit_rate = options.bit_rate;
  codec->time_base = {1, options.sample_rate};
  codec->thread_count = 1;
  av_channel_layout_default(&codec->ch_layout, options.channels);
  track_.open(nullptr);

  frame_size_ = codec->frame_size;
  frame_->nb_samples = frame_size_;
  frame_->format = codec->sample_fmt;
  frame_->sample_rate = codec->sample_rate;
  av::check(av_channel_layout_copy(&frame_->ch_layout, &codec->ch_layout), name);
  av::check(av_frame_get_buffer(frame_.get(), 0), name);
}

void AudioTrack::write(const float* samples, std::int64_t count) {
  for (std::int64_t i = 0; i < count; ++i) {
    if (filled_ == 0) av::check(av_frame_make_writable(frame_.get()), "out of memory for audio");
    for (int c = 0; c < channels_; ++c) {
      const float value = samples[i * channels_ + c];
      require(std::isfinite(value), "{}: audio sample {} is not finite", name_, next_ + filled_);
      reinterpret_cast<float*>(frame_->extended_data[c])[filled_] = std::clamp(value, -1.0f, 1.0f);
    }
    if (++filled_ == frame_size_) encode(filled_);
  }
}

void AudioTrack::encode(int count) {
  frame_->nb_samples = count;
  frame_->pts = next_;
  next_ += count;
  filled_ = 0;
  track_.encode(frame_.get());
}

void AudioTrack::flush() {
  if (filled_ > 0) encode(filled_);
  track_.encode(nullptr);
}

}  // namespace magi
