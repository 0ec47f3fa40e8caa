// SPDX-License-Identifier: Apache-2.0
#include "media/image_reader.h"

#include <algorithm>
#include <vector>

#include "media/av.h"
#include "media/image_header.h"

namespace magi {
namespace {

constexpr std::size_t kMostFileBytes = std::size_t{1} << 30;  ///< 100 megapixels of four 16-bit components

AVCodecID codec_of(ImageFormat format) {
  switch (format) {
    case ImageFormat::png:
      return AV_CODEC_ID_PNG;
    case ImageFormat::jpeg:
      return AV_CODEC_ID_MJPEG;
    case ImageFormat::webp:
      return AV_CODEC_ID_WEBP;
  }
  fail("unknown picture format");
}

/// The decoder is chosen here and fed from memory: no demuxer, hence no playlists, protocols or other files.
av::Frame decode(const ImageHeader& header, const std::string& name) {
  const ImageFormat format = header.format;
  const Bytes file = !header.first_frame.empty()   ? Bytes(header.first_frame)
                     : !header.pixels_only.empty() ? Bytes(header.pixels_only)
                                                   : header.picture;
  av::init();
  const AVCodec* decoder = avcodec_find_decoder(codec_of(format));
  require(decoder != nullptr, "{}: this build of FFmpeg has no decoder for {}", name,
          avcodec_get_name(codec_of(format)));
  const av::Codec codec = av::new_codec(decoder);
  codec->thread_count = 1;
  codec->max_pixels = (header.width + 64) * (header.height + 64);  // whole blocks
  codec->err_recognition = AV_EF_CRCCHECK | AV_EF_BITSTREAM | AV_EF_BUFFER | AV_EF_EXPLODE;
  codec->flags = AV_CODEC_FLAG_BITEXACT;
  codec->idct_algo = FF_IDCT_INT;  // the accurate integer transform that other JPEG decoders use
  av::check(avcodec_open2(codec.get(), decoder, nullptr), name);

  const av::Packet packet = av::new_packet();
  av::check(av_new_packet(packet.get(), static_cast<int>(file.size())), name);
  std::ranges::copy(file, packet->data);
  av::Frame frame = av::new_frame();
  const auto damaged = [&](int code) {
    require(code >= 0, "{}: the picture is damaged or of an unsupported kind ({})", name, av::reason(code));
  };
  damaged(avcodec_send_packet(codec.get(), packet.get()));
  damaged(avcodec_send_packet(codec.get(), nullptr));
  damaged(avcodec_receive_frame(codec.get(), frame.get()));
  require(frame->decode_error_flags == 0 && (frame->flags & AV_FRAME_FLAG_CORRUPT) == 0,
          "{}: the picture is damaged", name);
  return frame;
}

/// Reads one component of RGB, grey, palette and alpha formats, any depth and layout, as 8 bits.
class ComponentReader {
 public:
  explicit ComponentReader(const AVFrame* frame)
      : frame_(frame),
        layout_(av_pix_fmt_desc_get(static_cast<AVPixelFormat>(frame->format))),
        line_(static_cast<std::size_t>(frame->width)) {}

  void read(int y, int component, std::uint8_t* out) {
    const std::uint8_t* planes[4] = {frame_->data[0], frame_->data[1], frame_->data[2], frame_->data[3]};
    const int pitches[4] = {frame_->linesize[0], frame_->linesize[1], frame_->linesize[2],
                            frame_->linesize[3]};
    const int stored = is_palette() ? 0 : component;
    av_read_image_line2(line_.data(), planes, pitches, layout_, 0, y, stored, frame_->width, 0,
                        sizeof(std::uint16_t));
    if (is_palette()) {
      const auto* palette = reinterpret_cast<const std::uint32_t*>(frame_->data[1]);  // 0xAARRGGBB
      const int shift = component == 3 ? 24 : 16 - 8 * component;
      for (int x = 0; x < frame_->width; ++x) out[x] = static_cast<std::uint8_t>(palette[line_[x]] >> shift);
      return;
    }
    const unsigned maximum = (1u << layout_->comp[component].depth) - 1;
    for (int x = 0; x < frame_->width; ++x) {
      out[x] = static_cast<std::uint8_t>((line_[x] * 255u + maximum / 2) / maximum);
    }
  }

  bool is_yuv() const { return layout_->nb_components >= 3 && (layout_->flags & AV_PIX_FMT_FLAG_RGB) == 0; }
  bool has_alpha() const { return (layout_->flags & AV_PIX_FMT_FLAG_ALPHA) != 0; }
  bool is_palette() const { return (layout_->flags & AV_PIX_FMT_FLAG_PAL) != 0; }
  bool is_grey() const { return layout_->nb_components < 3 && !is_palette(); }
  int alpha_component() const { return is_palette() ? 3 : layout_->nb_components - 1; }

 private:
  const AVFrame* frame_;
  const AVPixFmtDescriptor* layout_;
  std::vector<std::uint16_t> line_;
};

Tensor to_rgb(const AVFrame* frame, ImageFormat format) {
  ComponentReader reader(frame);
  const int width = frame->width, height = frame->height;
  Tensor rgb = Tensor::empty(DType::u8, {height, width, 3});
  std::uint8_t* out = rgb.data<std::uint8_t>();
  if (reader.is_yuv()) {
    // JPEG: BT.601, full range. WebP: BT.601, limited range. Both: chroma between the luma samples.
    av::YuvToRgb(*frame, {SWS_CS_ITU601, format == ImageFormat::jpeg}, false).convert(*frame, out);
  }
  std::vector<std::uint8_t> line(static_cast<std::size_t>(width));
  for (int y = 0; y < height; ++y, out += width * 3) {
    for (int c = 0; c < 3 && !reader.is_yuv(); ++c) {
      reader.read(y, reader.is_grey() ? 0 : c, line.data());
      for (int x = 0; x < width; ++x) out[x * 3 + c] = line[x];
    }
    if (!reader.has_alpha()) continue;
    reader.read(y, reader.alpha_component(), line.data());
    for (int i = 0; i < width * 3; ++i) {
      const int alpha = line[i / 3];
      out[i] = static_cast<std::uint8_t>((out[i] * alpha + 255 * (255 - alpha) + 127) / 255);
    }
  }
  return rgb;
}

/// EXIF: 2, 4, 5, 7 are mirrored, 5 … 8 have their axes exchanged.
Tensor upright(const Tensor& image, int orientation) {
  if (orientation == 1) return image;
  const std::int64_t rows = image.dim(0), columns = image.dim(1);
  const bool transposed = orientation >= 5;
  const bool from_right = orientation == 2 || orientation == 3 || orientation == 7 || orientation == 8;
  const bool from_bottom = orientation == 3 || orientation == 4 || orientation == 6 || orientation == 7;
  const std::int64_t height = transposed ? columns : rows, width = transposed ? rows : columns;
  Tensor result = Tensor::empty(DType::u8, {height, width, 3});
  const std::uint8_t* in = image.data<std::uint8_t>();
  std::uint8_t* out = result.data<std::uint8_t>();
  for (std::int64_t y = 0; y < height; ++y) {
    for (std::int64_t x = 0; x < width; ++x) {
      const std::int64_t column = transposed ? y : x, row = transposed ? x : y;
      const std::int64_t from_column = from_right ? columns - 1 - column : column;
      const std::int64_t from_row = from_bottom ? rows - 1 - row : row;
      std::copy_n(in + (from_row * columns + from_column) * 3, 3, out + (y * width + x) * 3);
    }
  }
  return result;
}

/// An animation's first frame may cover a part of the picture only; the rest is transparent, hence white.
Tensor place(const Tensor& frame, const ImageHeader& header, const std::string& name) {
  require(header.frame_x + frame.dim(1) <= header.width && header.frame_y + frame.dim(0) <= header.height,
          "{}: a frame lies outside the picture", name);
  Tensor picture = Tensor::empty(DType::u8, {header.height, header.width, 3});
  std::ranges::fill(picture.values<std::uint8_t>(), std::uint8_t{255});
  for (std::int64_t y = 0; y < frame.dim(0); ++y) {
    std::copy_n(frame.data<std::uint8_t>() + y * frame.dim(1) * 3, frame.dim(1) * 3,
                picture.data<std::uint8_t>() + ((header.frame_y + y) * header.width + header.frame_x) * 3);
  }
  return picture;
}

}  // namespace

std::shared_ptr<const MappedFile> open_image(const std::filesystem::path& path) {
  auto file = MappedFile::open(path);
  require(file->bytes().size() <= kMostFileBytes,
          "{}: {} bytes are too many for a picture, at most {} are read", path.string(), file->bytes().size(),
          kMostFileBytes);
  return file;
}

Tensor read_image(const std::filesystem::path& path, const ImageOptions& options) {
  const auto file = open_image(path);
  return read_image({reinterpret_cast<const std::uint8_t*>(file->bytes().data()), file->bytes().size()},
                    path.string(), options);
}

Tensor read_image(std::span<const std::uint8_t> file, const std::string& name, const ImageOptions& options) {
  const ImageHeader header = parse_image_header(file, name);
  require(header.width < 32768 && header.height < 32768 && header.width * header.height <= options.max_pixels,
          "{}: a picture of {}x{} pixels is larger than the limit of {} pixels (and 32767 a side)", name,
          header.width, header.height, options.max_pixels);
  if (header.animated && options.warn)
    options.warn(fmt::format("{}: animated, the first frame is used", name));

  const av::Frame frame = decode(header, name);
  Tensor image = to_rgb(frame.get(), header.format);
  if (!header.first_frame.empty()) image = place(image, header, name);
  require(image.dim(1) == header.width && image.dim(0) == header.height,
          "{}: the header says {}x{} pixels, the picture has {}x{}", name, header.width, header.height,
          image.dim(1), image.dim(0));
  return upright(image, header.orientation);
}

}  // namespace magi
