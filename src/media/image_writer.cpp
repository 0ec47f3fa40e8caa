// SPDX-License-Identifier: Apache-2.0
#include "media/image_writer.h"

#include "io/atomic_file.h"
#include "media/av.h"

namespace magi {
namespace {

/// One frame through one encoder. `quantiser` 0: the encoder has none.
std::vector<std::uint8_t> encode(const Tensor& image, const char* name, AVPixelFormat format, int quantiser) {
  av::require_rgb(image, name);
  av::init();
  const AVCodec* encoder = avcodec_find_encoder_by_name(name);
  require(encoder != nullptr, "this build of FFmpeg has no encoder {}: install one that has it", name);
  const av::Codec codec = av::new_codec(encoder);
  const int width = static_cast<int>(image.dim(1)), height = static_cast<int>(image.dim(0));
  codec->width = width;
  codec->height = height;
  codec->pix_fmt = format;
  codec->time_base = {1, 25};
  codec->thread_count = 1;
  codec->flags = AV_CODEC_FLAG_BITEXACT;
  if (quantiser > 0) {
    codec->flags |= AV_CODEC_FLAG_QSCALE;
    codec->global_quality = quantiser * FF_QP2LAMBDA;
  }
  av::check(avcodec_open2(codec.get(), encoder, nullptr), name);

  const av::Frame frame = av::new_picture(width, height, format);
  frame->quality = codec->global_quality;
  av::ScalerSide to{width, height, format};
  to.colour = {SWS_CS_ITU601, true};
  const av::Scaler scaler = av::new_scaler({width, height}, to);
  const std::uint8_t* planes[4] = {image.data<std::uint8_t>()};
  const int pitches[4] = {width * 3};
  sws_scale(scaler.get(), planes, pitches, 0, height, frame->data, frame->linesize);

  const av::Packet packet = av::new_packet();
  av::check(avcodec_send_frame(codec.get(), frame.get()), name);
  av::check(avcodec_send_frame(codec.get(), nullptr), name);
  av::check(avcodec_receive_packet(codec.get(), packet.get()), name);
  return {packet->data, packet->data + packet->size};
}

void write(const std::filesystem::path& path, const std::vector<std::uint8_t>& bytes) {
  AtomicFile file(path);
  file.write(bytes.data(), bytes.size());
  file.commit();
}

}  // namespace

std::vector<std::uint8_t> encode_png(const Tensor& frame) {
  return encode(frame, "png", AV_PIX_FMT_RGB24, 0);
}

std::vector<std::uint8_t> encode_jpeg(const Tensor& frame, int quality) {
  require(quality >= 1 && quality <= 100, "JPEG quality {} is not within 1 … 100", quality);
  return encode(frame, "mjpeg", AV_PIX_FMT_YUVJ444P,
                1 + (100 - quality) * 30 / 99);  // FFmpeg's scale is 1 … 31
}

void write_png(const std::filesystem::path& path, const Tensor& frame) {
  write(path, encode_png(frame));
}

void write_jpeg(const std::filesystem::path& path, const Tensor& frame, int quality) {
  write(path, encode_jpeg(frame, quality));
}

}  // namespace magi
