// SPDX-License-Identifier: Apache-2.0
#include "media/image_resize.h"

#include <algorithm>
#include <cmath>
#include <numbers>
#include <vector>

#include "media/av.h"

namespace magi {
namespace {

constexpr int kFractionBits = 22;  // 32 − 8 − 2: an 8-bit sample and a weight of up to ±2 fit into 32 bits

double sinc(double x) {
  return x == 0 ? 1 : std::sin(std::numbers::pi * x) / (std::numbers::pi * x);
}
double lanczos(double x) {
  return x >= -3 && x < 3 ? sinc(x) * sinc(x / 3) : 0;
}

/// The inputs of one output sample: `first` … and their fixed-point weights.
struct Taps {
  std::int64_t first = 0;
  std::vector<std::int32_t> weights;
};

std::vector<Taps> lanczos_taps(std::int64_t in, std::int64_t out) {
  const double scale = static_cast<double>(in) / static_cast<double>(out);
  const double stretch = std::max(scale, 1.0), support = 3 * stretch;
  std::vector<Taps> all(static_cast<std::size_t>(out));
  for (std::int64_t i = 0; i < out; ++i) {
    const double centre = (static_cast<double>(i) + 0.5) * scale;
    const auto first = std::max<std::int64_t>(0, static_cast<std::int64_t>(centre - support + 0.5));
    const auto end = std::min(in, static_cast<std::int64_t>(centre + support + 0.5));
    std::vector<double> weights;
    double sum = 0;
    for (std::int64_t x = first; x < end; ++x) {
      weights.push_back(lanczos((static_cast<double>(x) - centre + 0.5) * (1.0 / stretch)));
      sum += weights.back();
    }
    all[i].first = first;
    for (const double w : weights) {
      const double fixed = w / sum * (1 << kFractionBits);
      all[i].weights.push_back(static_cast<std::int32_t>(fixed < 0 ? fixed - 0.5 : fixed + 0.5));
    }
  }
  return all;
}

std::uint8_t rounded(std::int32_t sum) {
  return static_cast<std::uint8_t>(std::clamp(sum >> kFractionBits, 0, 255));
}

constexpr std::int32_t kHalf = 1 << (kFractionBits - 1);

Tensor resize_columns(const Tensor& image, std::int64_t width) {
  const std::int64_t height = image.dim(0), in_width = image.dim(1);
  const std::vector<Taps> taps = lanczos_taps(in_width, width);
  Tensor result = Tensor::empty(DType::u8, {height, width, 3});
  const std::uint8_t* in = image.data<std::uint8_t>();
  std::uint8_t* out = result.data<std::uint8_t>();
#pragma omp parallel for
  for (std::int64_t y = 0; y < height; ++y) {
    for (std::int64_t x = 0; x < width; ++x) {
      const std::uint8_t* pixel = in + (y * in_width + taps[x].first) * 3;
      std::int32_t sum[3] = {kHalf, kHalf, kHalf};
      for (const std::int32_t w : taps[x].weights) {
        for (int c = 0; c < 3; ++c) sum[c] += w * pixel[c];
        pixel += 3;
      }
      for (int c = 0; c < 3; ++c) out[(y * width + x) * 3 + c] = rounded(sum[c]);
    }
  }
  return result;
}

Tensor resize_rows(const Tensor& image, std::int64_t height) {
  const std::int64_t in_height = image.dim(0), row = image.dim(1) * 3;
  const std::vector<Taps> taps = lanczos_taps(in_height, height);
  Tensor result = Tensor::empty(DType::u8, {height, image.dim(1), 3});
  const std::uint8_t* in = image.data<std::uint8_t>();
  std::uint8_t* out = result.data<std::uint8_t>();
#pragma omp parallel for
  for (std::int64_t y = 0; y < height; ++y) {
    std::vector<std::int32_t> sum(static_cast<std::size_t>(row), kHalf);
    const std::uint8_t* line = in + taps[y].first * row;
    for (const std::int32_t w : taps[y].weights) {
      for (std::int64_t i = 0; i < row; ++i) sum[i] += w * line[i];
      line += row;
    }
    for (std::int64_t i = 0; i < row; ++i) out[y * row + i] = rounded(sum[i]);
  }
  return result;
}

/// round-half-even of side·scale, at least 1.
std::int64_t scaled(std::int64_t side, double scale) {
  return std::max<std::int64_t>(1, std::llrint(static_cast<double>(side) * scale));
}

}  // namespace

Tensor resize_lanczos(const Tensor& image, std::int64_t height, std::int64_t width) {
  av::require_rgb(image, "resize");
  require(height >= 1 && width >= 1 && height < 32768 && width < 32768,
          "resize: cannot make a picture of {}x{}", width, height);
  const Tensor narrow = image.dim(1) == width ? image : resize_columns(image, width);
  if (narrow.dim(0) != height) return resize_rows(narrow, height);
  return image.dim(1) == width ? image.clone() : narrow;
}

Tensor letterbox(const Tensor& image, std::int64_t clip_width, std::int64_t clip_height) {
  av::require_rgb(image, "reference image");
  const std::int64_t w = image.dim(1), h = image.dim(0), longest = std::max(clip_width, clip_height);
  require(longest >= 1 && longest < 32768, "reference image: a clip of {}x{} cannot be made", clip_width,
          clip_height);
  const std::int64_t width = w > h ? longest : w * longest / h;
  const std::int64_t height = w > h ? h * longest / w : longest;
  require(width >= 1 && height >= 1, "reference image of {}x{} is too elongated for a clip of {}x{}: crop it",
          w, h, clip_width, clip_height);

  const double scale = std::min(static_cast<double>(width) / static_cast<double>(w),
                                static_cast<double>(height) / static_cast<double>(h));
  const Tensor fitted = resize_lanczos(image, scaled(h, scale), scaled(w, scale));
  Tensor canvas = Tensor::empty(DType::u8, {height, width, 3});
  std::ranges::fill(canvas.values<std::uint8_t>(), std::uint8_t{255});
  const std::int64_t row = fitted.dim(1) * 3;
  const std::int64_t top = (height - fitted.dim(0)) / 2, left = (width - fitted.dim(1)) / 2;
  for (std::int64_t y = 0; y < fitted.dim(0); ++y) {
    std::copy_n(fitted.data<std::uint8_t>() + y * row, row,
                canvas.data<std::uint8_t>() + ((top + y) * width + left) * 3);
  }
  return canvas;
}

Tensor prepare_reference_image(const Tensor& image, std::int64_t clip_width, std::int64_t clip_height) {
  constexpr std::int64_t kMultiple = 32;  // 16 by the image encoder, 2 by its patches
  const Tensor canvas = letterbox(image, clip_width, clip_height);
  const std::int64_t height = canvas.dim(0) / kMultiple * kMultiple,
                     width = canvas.dim(1) / kMultiple * kMultiple;
  require(width > 0 && height > 0,
          "reference image of {}x{} would be {}x{} in a clip of {}x{}: both sides need {} pixels, crop it",
          image.dim(1), image.dim(0), canvas.dim(1), canvas.dim(0), clip_width, clip_height, kMultiple);
  return resize_lanczos(canvas, height, width);
}

}  // namespace magi
