// SPDX-License-Identifier: Apache-2.0
// PNG: W3C PNG (third edition) 5, 11. JPEG: ITU-T T.81 annex B. WebP: RFC 9649. EXIF: CIPA DC-008 4.6
// (TIFF 6.0 IFD).
#include "media/image_header.h"

#include <algorithm>
#include <string_view>

#include "core/error.h"

namespace magi {
namespace {

/// Reads numbers at an offset; whatever lies beyond the end throws.
class Reader {
 public:
  Reader(Bytes bytes, const std::string& name) : bytes_(bytes), name_(name) {}

  Bytes slice(std::size_t at, std::size_t count) const {
    require(at <= bytes_.size() && count <= bytes_.size() - at, "{}: the picture is cut short ({} bytes)",
            name_, bytes_.size());
    return bytes_.subspan(at, count);
  }
  std::uint32_t big(std::size_t at, int count) const {
    std::uint32_t value = 0;
    for (const std::uint8_t byte : slice(at, count)) value = value << 8 | byte;
    return value;
  }
  std::uint32_t little(std::size_t at, int count) const {
    std::uint32_t value = 0;
    int shift = 0;
    for (const std::uint8_t byte : slice(at, count)) {
      value |= static_cast<std::uint32_t>(byte) << shift;
      shift += 8;
    }
    return value;
  }
  bool is(std::size_t at, std::string_view text) const {
    return at <= bytes_.size() && text.size() <= bytes_.size() - at &&
           std::equal(text.begin(), text.end(), bytes_.begin() + static_cast<std::ptrdiff_t>(at),
                      [](char a, std::uint8_t b) { return static_cast<std::uint8_t>(a) == b; });
  }
  std::size_t size() const { return bytes_.size(); }
  const std::string& name() const { return name_; }

 private:
  Bytes bytes_;
  const std::string& name_;
};

/// Tag 0x0112 of the first directory. Damaged EXIF data never spoils a picture: it counts as upright.
int exif_orientation(Bytes tiff) {
  try {
    const std::string name = "EXIF";
    const Reader r(tiff, name);
    const bool little = r.is(0, "II");
    if (!little && !r.is(0, "MM")) return 1;
    const auto number = [&](std::size_t at, int count) {
      return little ? r.little(at, count) : r.big(at, count);
    };
    const std::size_t directory = number(4, 4);
    const std::uint32_t entries = number(directory, 2);
    for (std::uint32_t i = 0; i < entries; ++i) {
      const std::size_t entry = directory + 2 + std::size_t{12} * i;
      if (number(entry, 2) != 0x0112) continue;
      const std::uint32_t value = number(entry + 8, 2);
      return value >= 1 && value <= 8 ? static_cast<int>(value) : 1;
    }
  } catch (const Error&) {
  }
  return 1;
}

constexpr std::string_view kPngSignature = "\x89PNG\r\n\x1a\n";

ImageHeader parse_png(const Reader& r) {
  ImageHeader header{.format = ImageFormat::png};
  std::size_t at = kPngSignature.size();
  require(r.is(at + 4, "IHDR") && r.big(at, 4) == 13, "{}: PNG without a header", r.name());
  header.width = r.big(at + 8, 4);
  header.height = r.big(at + 12, 4);
  const auto keep = [&](Bytes chunk) {
    header.pixels_only.insert(header.pixels_only.end(), chunk.begin(), chunk.end());
  };
  keep(r.slice(0, at));
  while (!r.is(at + 4, "IEND")) {
    const std::size_t length = r.big(at, 4);
    const Bytes content = r.slice(at + 8, length + 4).first(length);  // 4: checksum
    const bool critical = (r.big(at + 4, 1) & 0x20) == 0;             // its name's first letter is a capital
    if (critical || r.is(at + 4, "tRNS")) keep(r.slice(at, 12 + length));
    if (r.is(at + 4, "eXIf")) header.orientation = exif_orientation(content);
    if (r.is(at + 4, "acTL") && length >= 4) header.animated = r.big(at + 8, 4) > 1;
    at += 12 + length;
  }
  keep(r.slice(at, 12));
  header.picture = r.slice(0, at + 12);
  return header;
}

/// The position of the next marker behind entropy-coded data.
std::size_t end_of_scan(const Reader& r, std::size_t at) {
  for (;; ++at) {
    if (r.big(at, 1) != 0xff) continue;
    const std::uint32_t next = r.big(at + 1, 1);
    const bool data = next == 0 || next == 0xff || (next >= 0xd0 && next <= 0xd7);
    if (!data) return at;
  }
}

constexpr int kMaxScans =
    100;  // encoders write a dozen; each goes over the whole picture, however few bytes it has

ImageHeader parse_jpeg(const Reader& r) {
  ImageHeader header{.format = ImageFormat::jpeg};
  std::size_t at = 2;
  int scans = 0;
  while (true) {
    require(r.big(at, 1) == 0xff, "{}: JPEG is damaged at byte {}", r.name(), at);
    const std::uint32_t marker = r.big(at + 1, 1);
    if (marker == 0xff) {  // fill byte
      ++at;
      continue;
    }
    if (marker == 0xd9) break;
    const std::size_t length = r.big(at + 2, 2);
    require(length >= 2, "{}: JPEG is damaged at byte {}", r.name(), at);
    const Bytes content = r.slice(at + 4, length - 2);
    const bool frame = marker >= 0xc0 && marker <= 0xcf && marker != 0xc4 && marker != 0xc8 && marker != 0xcc;
    if (frame) {
      require(header.width == 0, "{}: JPEG with more than one frame header", r.name());
      header.height = r.big(at + 5, 2);
      header.width = r.big(at + 7, 2);
    }
    if (marker == 0xe1 && content.size() > 6 && r.is(at + 4, {"Exif\0\0", 6})) {
      header.orientation = exif_orientation(content.subspan(6));
    }
    at += 2 + length;
    if (marker != 0xda) continue;
    require(++scans <= kMaxScans, "{}: JPEG of more than {} scans", r.name(), kMaxScans);
    at = end_of_scan(r, at);
  }
  header.picture = r.slice(0, at + 2);
  return header;
}

/// Width and height in a frame's own bitstream, chunk at `at`.
void webp_frame_size(const Reader& r, std::size_t at, std::int64_t& width, std::int64_t& height) {
  if (r.is(at, "VP8L")) {
    const std::uint32_t bits = r.little(at + 9, 4);
    width = (bits & 0x3fff) + 1;
    height = (bits >> 14 & 0x3fff) + 1;
  } else {
    width = r.little(at + 14, 2) & 0x3fff;
    height = r.little(at + 16, 2) & 0x3fff;
  }
}

/// ANMF chunk → a WebP file with this frame alone.
void extract_first_frame(const Reader& r, std::size_t at, std::size_t length, ImageHeader& header) {
  constexpr std::size_t kFrameHeader = 16;
  require(length >= kFrameHeader, "{}: damaged WebP frame", r.name());
  header.frame_x = 2 * std::int64_t{r.little(at + 8, 3)};
  header.frame_y = 2 * std::int64_t{r.little(at + 11, 3)};
  const Bytes size = r.slice(at + 14, 6), content = r.slice(at + 8 + kFrameHeader, length - kFrameHeader);
  auto& file = header.first_frame;
  const auto append = [&](auto bytes) { file.insert(file.end(), bytes.begin(), bytes.end()); };
  const auto append_number = [&](std::size_t value) {
    for (int i = 0; i < 4; ++i) file.push_back(static_cast<std::uint8_t>(value >> 8 * i));
  };
  constexpr std::size_t kExtended = 10;
  append(std::string_view("RIFF"));
  append_number(4 + 8 + kExtended + content.size());
  append(std::string_view("WEBPVP8X"));
  append_number(kExtended);
  append_number(0x10);  // may have alpha
  append(size);
  append(content);
}

ImageHeader parse_webp(const Reader& whole) {
  const std::size_t end = 8 + std::size_t{whole.little(4, 4)};
  const Reader r(whole.slice(0, end), whole.name());
  ImageHeader header{.format = ImageFormat::webp, .picture = whole.slice(0, end)};
  bool first = true;
  std::size_t frames = 0;
  for (std::size_t at = 12; at + 8 <= end;) {
    const std::size_t length = r.little(at + 4, 4);
    const Bytes content = r.slice(at + 8, length);
    if (r.is(at, "VP8X")) {
      header.width = std::int64_t{r.little(at + 12, 3)} + 1;
      header.height = std::int64_t{r.little(at + 15, 3)} + 1;
    } else if (first) {
      require(r.is(at, "VP8L") || r.is(at, "VP8 "), "{}: WebP without a picture", r.name());
      webp_frame_size(r, at, header.width, header.height);
    }
    if (r.is(at, "ANMF") && frames++ == 0) extract_first_frame(r, at, length, header);
    if (r.is(at, "EXIF")) {
      const bool prefixed = r.is(at + 8, {"Exif\0\0", 6});  // some writers keep JPEG's prefix
      header.orientation = exif_orientation(content.subspan(prefixed ? 6 : 0));
    }
    first = false;
    at += 8 + length + length % 2;
  }
  header.animated = frames > 1;
  return header;
}

}  // namespace

ImageHeader parse_image_header(Bytes file, const std::string& name) {
  const Reader r(file, name);
  ImageHeader header;
  if (r.is(0, kPngSignature)) {
    header = parse_png(r);
  } else if (r.is(0, "\xff\xd8\xff")) {
    header = parse_jpeg(r);
  } else if (r.is(0, "RIFF") && r.is(8, "WEBP")) {
    header = parse_webp(r);
  } else {
    fail("{}: not a PNG, JPEG or WebP picture", name);
  }
  require(header.width > 0 && header.height > 0, "{}: the picture has no size", name);
  return header;
}

}  // namespace magi
