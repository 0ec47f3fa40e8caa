// SPDX-License-Identifier: Apache-2.0
// data/NAME.expected.png is what Pillow shows for data/NAME (transparent pictures over white); see
// data/README.md.
#include "media/image_reader.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <fstream>
#include <iterator>
#include <string_view>
#include <vector>

#include "media/image_header.h"
#include "media/image_writer.h"
#include "support/expect_error.h"
#include "support/golden.h"
#include "support/temp_dir.h"

namespace magi {
namespace {

std::filesystem::path data(const std::string& name) {
  return std::filesystem::path(MAGI2_SOURCE_DIR) / "tests/media/data" / name;
}

std::vector<std::uint8_t> bytes_of(const std::string& name) {
  std::ifstream file(data(name), std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

/// Decodes and compares with Pillow's picture.
void compare(const std::string& name, double tolerance) {
  const Tensor got = read_image(data(name)), want = read_image(data(name + ".expected.png"));
  ASSERT_EQ(got.shape(), want.shape()) << name;
  double sum = 0;
  for (std::int64_t i = 0; i < got.numel(); ++i) {
    sum += std::abs(got.data<std::uint8_t>()[i] - want.data<std::uint8_t>()[i]);
  }
  const double largest = max_abs_diff(got, want);
  std::printf("%s: within %g levels, mean %.3f\n", name.c_str(), largest,
              sum / static_cast<double>(got.numel()));
  EXPECT_LE(largest, tolerance) << name;
  EXPECT_LE(sum / static_cast<double>(got.numel()), 1) << name;
}

TEST(ImageReader, PngIsExact) {
  const Tensor image = read_image(data("rgb.png"));
  ASSERT_EQ(image.shape(), (Shape{38, 45, 3}));
  const std::uint8_t* red = image.data<std::uint8_t>() + (5 * 45 + 6) * 3;  // inside the painted rectangle
  EXPECT_EQ(std::vector<int>(red, red + 3), (std::vector<int>{250, 20, 30}));
  for (const char* name :
       {"rgb.png", "grey.png", "grey16.png", "one_bit.png", "palette.png", "orientation6.png"}) {
    compare(name, 0);
  }
  compare("rgb16.png", 1);  // Pillow drops the low byte, this rounds
}

TEST(ImageReader, AlphaLiesOverWhite) {
  for (const char* name : {"alpha.png", "grey_alpha.png", "palette_alpha.png", "alpha.webp"})
    compare(name, 1);
}

TEST(ImageReader, JpegIsCloseToOtherDecoders) {
  for (const char* name :
       {"ycc444.jpg", "ycc422.jpg", "ycc420.jpg", "progressive.jpg", "grey.jpg", "cmyk.jpg"}) {
    compare(name, 3);
  }
}

TEST(ImageReader, ExifOrientationIsHonoured) {
  for (int i = 1; i <= 8; ++i) compare("orientation" + std::to_string(i) + ".jpg", 2);
  compare("orientation6.webp", 0);
}

TEST(ImageReader, WebP) {
  compare("lossless.webp", 0);
  compare("lossy.webp", 2);
  compare("lossy_alpha.webp", 2);
}

TEST(ImageReader, AnimationsGiveTheirFirstFrameAndAWarning) {
  for (const std::string name : {"animated.png", "animated.webp"}) {
    compare(name, 0);
    std::string warning;
    ImageOptions options;
    options.warn = [&](std::string_view text) { warning = text; };
    read_image(data(name), options);
    EXPECT_NE(warning.find(name + ": animated"), std::string::npos) << warning;
  }
}

TEST(ImageReader, BombsAreRefusedByTheirHeader) {
  expect_error([] { read_image(data("bomb.png")); }, "bomb.png: a picture of 60000x60000 pixels is larger");
  ImageOptions small;
  small.max_pixels = 45 * 38 - 1;
  for (const char* name : {"rgb.png", "ycc420.jpg", "lossy.webp", "lossless.webp", "animated.webp"}) {
    expect_error([&] { read_image(data(name), small); }, "45x38 pixels is larger than the limit of 1709");
  }
  small.max_pixels = 45 * 38;
  for (const char* name : {"rgb.png", "ycc420.jpg", "lossy.webp", "lossless.webp", "animated.webp"}) {
    EXPECT_NO_THROW(read_image(data(name), small)) << name;
  }
}

/// What a decoder would inflate: some hundred bytes of text or profile may stand for gigabytes.
TEST(ImageReader, NothingButPixelsOfAPngIsDecoded) {
  const std::vector<std::uint8_t> plain = bytes_of("rgb.png");
  constexpr std::size_t kFirstChunk = 8 + 12 + 13;  // behind signature and header
  std::vector<std::uint8_t> loaded(plain.begin(), plain.begin() + kFirstChunk);
  for (const std::string name : {"zTXt", "iCCP", "iTXt", "zzzz"}) {
    const std::string chunk = std::string("\0\0\0\4", 4) + name + "bombCRC4";
    loaded.insert(loaded.end(), chunk.begin(), chunk.end());
  }
  loaded.insert(loaded.end(), plain.begin() + kFirstChunk, plain.end());
  const ImageHeader header = parse_image_header(loaded, "loaded.png");
  const std::string pixels(header.pixels_only.begin(), header.pixels_only.end());
  EXPECT_EQ(pixels.find("bomb"), std::string::npos);
  EXPECT_LE(pixels.size(), plain.size());
  EXPECT_EQ(max_abs_diff(read_image(loaded, "loaded.png"), read_image(data("rgb.png"))), 0);
}

TEST(ImageReader, JpegOfEndlessScansIsRefused) {
  std::vector<std::uint8_t> file = bytes_of("progressive.jpg");
  const auto mark = {std::uint8_t{0xff}, std::uint8_t{0xda}};
  const std::vector<std::uint8_t> scan(std::ranges::find_end(file, mark).begin(), file.end() - 2);
  for (int i = 0; i < 200; ++i) file.insert(file.end() - 2, scan.begin(), scan.end());
  expect_error([&] { read_image(file, "scans.jpg"); }, "scans.jpg: JPEG of more than 100 scans");
}

TEST(ImageReader, EveryTruncationIsRefused) {
  for (const char* name : {"rgb.png", "palette_alpha.png", "ycc420.jpg", "progressive.jpg",
                           "orientation6.jpg", "lossy.webp", "alpha.webp", "animated.webp", "animated.png"}) {
    const std::vector<std::uint8_t> whole = bytes_of(name);
    for (std::size_t length = 0; length + 1 < whole.size(); length += 1 + length / 40) {
      EXPECT_THROW(read_image(std::span(whole).first(length), name), Error)
          << name << " of " << length << " bytes";
    }
    EXPECT_THROW(read_image(std::span(whole).first(whole.size() - 2), name), Error) << name;
  }
}

TEST(ImageReader, DamageIsAnErrorOrAPictureNeverACrash) {
  for (const char* name :
       {"rgb.png", "ycc420.jpg", "orientation6.jpg", "lossy_alpha.webp", "animated.webp"}) {
    const std::vector<std::uint8_t> whole = bytes_of(name);
    int refused = 0;
    for (std::size_t at = 0; at < whole.size(); at += 3) {
      std::vector<std::uint8_t> damaged = whole;
      damaged[at] ^= 0x5a;
      try {
        const Tensor image = read_image(damaged, name);
        EXPECT_TRUE(image.rank() == 3 && image.dim(2) == 3 && image.numel() > 0) << name << " " << at;
      } catch (const Error& error) {
        ++refused;
        EXPECT_NE(std::string_view(error.what()).find(name), std::string_view::npos) << error.what();
      }
    }
    EXPECT_GT(refused, 0) << name;
  }
}

TEST(ImageReader, DamagedPngChecksumsAreRefused) {
  std::vector<std::uint8_t> file = bytes_of("rgb.png");
  file[file.size() / 2] ^= 1;
  EXPECT_THROW(read_image(file, "rgb.png"), Error);
}

TEST(ImageReader, OnlyPicturesByContent) {
  const TempDir dir;
  expect_error([] { read_image(data("picture.gif")); }, "picture.gif: not a PNG, JPEG or WebP picture");
  const auto write = [&](const std::string& name, const std::string& text) {
    std::ofstream(dir / name) << text;
    return dir / name;
  };
  for (const auto& path :
       {write("a.png", "#EXTM3U\n#EXTINF:1,\n/etc/passwd\n"), write("b.png", "ffconcat version 1.0\n"),
        write("c.png", ""), write("d.png", "\xff\xd8")}) {
    expect_error([&] { read_image(path); }, path.string());
  }
  expect_error([&] { read_image(dir / "none.png"); }, "none.png");
  expect_error([&] { read_image(dir.path()); }, dir.path().string());
}

TEST(ImageReader, GoldenReferenceImageOpens) {
  if (!std::filesystem::exists(golden_file("e2e_image.png")))
    GTEST_SKIP() << "golden case missing: e2e_image.png";
  EXPECT_EQ(read_image(golden_file("e2e_image.png")).dim(2), 3);
}

TEST(ImageWriter, PngRoundTrips) {
  const TempDir dir;
  const Tensor image = read_image(data("rgb.png"));
  write_png(dir / "out.png", image);
  EXPECT_EQ(max_abs_diff(read_image(dir / "out.png"), image), 0);
  expect_error([&] { write_png(dir / "none/out.png", image); }, "none/out.png");
  expect_error([&] { write_png(dir.path(), image); }, dir.path().string());
}

TEST(ImageWriter, JpegIsClose) {
  const Tensor image = read_image(data("rgb.png"));
  const Tensor back = read_image(encode_jpeg(image, 100), "memory");
  EXPECT_LT(relative_l2(back, image), 0.02);
  EXPECT_LT(encode_jpeg(image, 30).size(), encode_jpeg(image, 90).size());
  expect_error([&] { encode_jpeg(image, 0); }, "quality 0");
  expect_error([] { encode_png(Tensor::zeros(DType::u8, {4, 4, 1})); }, "[height,width,3]");
}

}  // namespace
}  // namespace magi
