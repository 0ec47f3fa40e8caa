// SPDX-License-Identifier: Apache-2.0
#include "media/av.h"

extern "C" {
#include <libavutil/cpu.h>
#include <libavutil/error.h>
#include <libavutil/imgutils.h>
#include <libavutil/log.h>
#include <libavutil/opt.h>
}

#include <array>
#include <mutex>

#include "media/av_library.h"

namespace magi::av {

void init() {
  load_library();
  static std::once_flag once;
  std::call_once(once, [] {
    av_log_set_level(AV_LOG_QUIET);
    av_force_cpu_flags(0);
  });
}

std::string reason(int code) {
  std::array<char, AV_ERROR_MAX_STRING_SIZE> text{};
  av_strerror(code, text.data(), text.size());
  return text.data();
}

int check(int code, const std::string& what) {
  require(code >= 0, "{}: {}", what, reason(code));
  return code;
}

namespace {

template <typename T>
T* some(T* pointer) {
  require(pointer != nullptr, "out of memory for media");
  return pointer;
}

}  // namespace

Frame new_frame() {
  return Frame(some(av_frame_alloc()));
}
Frame new_picture(int width, int height, int format) {
  Frame frame = new_frame();
  frame->width = width;
  frame->height = height;
  frame->format = format;
  check(av_frame_get_buffer(frame.get(), 0), fmt::format("a picture of {}x{}", width, height));
  return frame;
}
Packet new_packet() {
  return Packet(some(av_packet_alloc()));
}
Codec new_codec(const AVCodec* codec) {
  return Codec(some(avcodec_alloc_context3(codec)));
}

Scaler new_scaler(const ScalerSide& from, const ScalerSide& to) {
  init();
  Scaler scaler(some(sws_alloc_context()));
  SwsContext* s = scaler.get();
  const int flags = SWS_BILINEAR | SWS_ACCURATE_RND | SWS_BITEXACT | SWS_FULL_CHR_H_INT | SWS_FULL_CHR_H_INP;
  av_opt_set_int(s, "sws_flags", flags, 0);
  av_opt_set_int(s, "srcw", from.width, 0);
  av_opt_set_int(s, "srch", from.height, 0);
  av_opt_set_int(s, "src_format", from.format, 0);
  if (from.chroma_left) av_opt_set_int(s, "src_h_chr_pos", 0, 0);  // left open, it is the middle
  av_opt_set_int(s, "dstw", to.width, 0);
  av_opt_set_int(s, "dsth", to.height, 0);
  av_opt_set_int(s, "dst_format", to.format, 0);
  if (to.chroma_left) av_opt_set_int(s, "dst_h_chr_pos", 0, 0);
  sws_setColorspaceDetails(s, sws_getCoefficients(from.colour.matrix), from.colour.full_range,
                           sws_getCoefficients(to.colour.matrix), to.colour.full_range, 0, 1 << 16, 1 << 16);
  check(sws_init_context(s, nullptr, nullptr),
        fmt::format("cannot convert a {}x{} picture to {}x{}", from.width, from.height, to.width, to.height));
  return scaler;
}

YuvToRgb::YuvToRgb(const AVFrame& like, Colour colour, bool chroma_left) {
  const AVPixFmtDescriptor* layout = av_pix_fmt_desc_get(static_cast<AVPixelFormat>(like.format));
  const int width = FFALIGN(like.width, 1 << layout->log2_chroma_w);
  const int height = FFALIGN(like.height, 1 << layout->log2_chroma_h);
  if (width != like.width || height != like.height) whole_ = new_picture(width, height, like.format);
  planes_ = new_picture(width, height, AV_PIX_FMT_GBRP);
  const ScalerSide from{width, height, static_cast<AVPixelFormat>(like.format), colour, chroma_left};
  scaler_ = new_scaler(from, {width, height, AV_PIX_FMT_GBRP});
}

void YuvToRgb::convert(const AVFrame& frame, std::uint8_t* rgb) {
  if (whole_) {  // luma beyond the picture stays as it is: it is cut off again
    av_image_copy(whole_->data, whole_->linesize, const_cast<const std::uint8_t**>(frame.data),
                  frame.linesize, static_cast<AVPixelFormat>(frame.format), frame.width, frame.height);
  }
  const AVFrame& from = whole_ ? *whole_ : frame;
  sws_scale(scaler_.get(), from.data, from.linesize, 0, planes_->height, planes_->data, planes_->linesize);
  for (int y = 0; y < frame.height; ++y) {
    const std::uint8_t* green = planes_->data[0] + std::ptrdiff_t{y} * planes_->linesize[0];
    const std::uint8_t* blue = planes_->data[1] + std::ptrdiff_t{y} * planes_->linesize[1];
    const std::uint8_t* red = planes_->data[2] + std::ptrdiff_t{y} * planes_->linesize[2];
    for (int x = 0; x < frame.width; ++x, rgb += 3) {
      rgb[0] = red[x];
      rgb[1] = green[x];
      rgb[2] = blue[x];
    }
  }
}

void require_rgb(const Tensor& image, const std::string& what) {
  require(image.defined() && image.dtype() == DType::u8 && image.rank() == 3 && image.dim(2) == 3 &&
              image.contiguous() && image.device().kind == Device::Kind::cpu,
          "{}: expected a u8 picture [height,width,3] in host memory, got {} {}", what,
          name_of(image.dtype()), to_string(image.shape()));
  require(image.dim(0) >= 1 && image.dim(1) >= 1 && image.dim(0) < 32768 && image.dim(1) < 32768,
          "{}: a picture of {}x{} cannot be handled (sides of 1 to 32767 pixels)", what, image.dim(1),
          image.dim(0));
}

}  // namespace magi::av
