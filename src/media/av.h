// SPDX-License-Identifier: Apache-2.0
// FFmpeg's libraries with owners and errors of our own. Internal to media: no public header includes this
// one.
#pragma once

extern "C" {
#include <libavcodec/avcodec.h>
#include <libavcodec/bsf.h>
#include <libavformat/avformat.h>
#include <libavutil/frame.h>
#include <libavutil/pixdesc.h>
#include <libswscale/swscale.h>
}

#include <memory>
#include <string>

#include "core/error.h"
#include "core/tensor.h"

namespace magi::av {

/// Call before anything else of FFmpeg's. Silences its log (our errors say what happened) and turns its SIMD
/// off for the whole process: its float transforms round differently on AVX2, SSE and NEON, and equal frames
/// shall give equal files everywhere. x264 is not affected: its SIMD is exact, and it decides by itself.
void init();

/// FFmpeg's name for an error code.
std::string reason(int code);

/// Throws Error "WHAT: reason" when `code` is negative; returns it otherwise.
int check(int code, const std::string& what);

struct Free {
  void operator()(AVFrame* p) const { av_frame_free(&p); }
  void operator()(AVPacket* p) const { av_packet_free(&p); }
  void operator()(AVCodecContext* p) const { avcodec_free_context(&p); }
  void operator()(AVBSFContext* p) const { av_bsf_free(&p); }
  void operator()(SwsContext* p) const { sws_freeContext(p); }
};
using Frame = std::unique_ptr<AVFrame, Free>;
using Packet = std::unique_ptr<AVPacket, Free>;
using Codec = std::unique_ptr<AVCodecContext, Free>;
using Filter = std::unique_ptr<AVBSFContext, Free>;
using Scaler = std::unique_ptr<SwsContext, Free>;

Frame new_frame();
/// With a buffer for a picture.
Frame new_picture(int width, int height, int format);
Packet new_packet();
Codec new_codec(const AVCodec* codec);

/// A picture's matrix and range, as swscale wants them.
struct Colour {
  int matrix = SWS_CS_ITU709;
  bool full_range = false;
};

struct ScalerSide {
  int width = 0;
  int height = 0;
  AVPixelFormat format = AV_PIX_FMT_RGB24;
  Colour colour{SWS_CS_ITU709, true};
  bool chroma_left =
      false;  ///< 4:2:0 and 4:2:2: chroma on every other luma column (MPEG), else between two (JPEG)
};

/// Bilinear, accurately rounded, the same bits everywhere.
Scaler new_scaler(const ScalerSide& from, const ScalerSide& to);

/// YUV pictures of one size and format → RGB, with chroma where it belongs. Two habits of swscale are worked
/// around: for packed RGB it rounds the weights of vertical chroma interpolation to halves, so this writes
/// planes; and it stretches the chroma of odd sizes (23 columns over 45, not 46), so this hands it whole
/// chroma samples.
class YuvToRgb {
 public:
  YuvToRgb(const AVFrame& like, Colour colour, bool chroma_left);
  /// rgb: [height,width,3].
  void convert(const AVFrame& frame, std::uint8_t* rgb);

 private:
  Scaler scaler_;
  Frame whole_;  // the picture extended to whole chroma samples; null where it is already
  Frame planes_;
};

/// Throws unless `image` is a contiguous host u8 tensor [H,W,3] with sides of 1 … 32,767 (FFmpeg's own limit
/// is near it).
void require_rgb(const Tensor& image, const std::string& what);

}  // namespace magi::av
