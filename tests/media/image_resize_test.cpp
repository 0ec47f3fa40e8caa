// SPDX-License-Identifier: Apache-2.0
#include "media/image_resize.h"

#include <gtest/gtest.h>

#include "support/expect_error.h"
#include "support/golden.h"

namespace magi {
namespace {

Tensor gradient(std::int64_t height, std::int64_t width) {
  Tensor image = Tensor::empty(DType::u8, {height, width, 3});
  for (std::int64_t i = 0; i < image.numel(); ++i)
    image.data<std::uint8_t>()[i] = static_cast<std::uint8_t>(i * 7);
  return image;
}

TEST(ImageResize, TheSameSizeIsACopy) {
  const Tensor image = gradient(5, 9);
  const Tensor same = resize_lanczos(image, 5, 9);
  EXPECT_NE(same.raw(), image.raw());
  EXPECT_EQ(max_abs_diff(same, image), 0);
}

TEST(ImageResize, OneColourStaysThatColour) {
  Tensor image = Tensor::empty(DType::u8, {1, 3, 3});
  std::ranges::fill(image.values<std::uint8_t>(), std::uint8_t{201});
  const Tensor large = resize_lanczos(image, 17, 50);
  EXPECT_EQ(large.shape(), (Shape{17, 50, 3}));
  for (const std::uint8_t value : large.values<std::uint8_t>()) EXPECT_EQ(value, 201);
}

TEST(ImageResize, LetterboxTakesThePicturesShapeAndTheClipsLength) {
  EXPECT_EQ(letterbox(gradient(70, 100), 448, 256).shape(), (Shape{313, 448, 3}));
  EXPECT_EQ(letterbox(gradient(100, 70), 448, 256).shape(), (Shape{448, 313, 3}));
  EXPECT_EQ(prepare_reference_image(gradient(100, 70), 448, 256).shape(), (Shape{448, 288, 3}));
  EXPECT_EQ(prepare_reference_image(gradient(64, 64), 256, 448).shape(), (Shape{448, 448, 3}));
}

TEST(ImageResize, RefusesWhatCannotBecomeAReference) {
  expect_error([] { prepare_reference_image(gradient(3, 300), 448, 256); }, "crop it");
  expect_error([] { letterbox(gradient(1, 900), 448, 256); }, "crop it");
  expect_error([] { letterbox(Tensor::zeros(DType::u8, {4, 4}), 448, 256); }, "[height,width,3]");
  expect_error([] { letterbox(Tensor::zeros(DType::f32, {4, 4, 3}), 448, 256); }, "[height,width,3]");
  expect_error([] { letterbox(Tensor::zeros(DType::u8, {0, 4, 3}), 448, 256); }, "4x0");
  expect_error([] { letterbox(gradient(4, 4), 0, 0); }, "0x0");
  expect_error([] { resize_lanczos(gradient(4, 4), 0, 5); }, "5x0");
}

TEST(GoldenImage, Preprocess) {
  GOLDEN_CASE(data, "image_preprocess");
  int i = 0;
  for (; data.has(std::to_string(i) + "_image"); ++i) {
    const std::string prefix = std::to_string(i) + "_";
    const Tensor image = data.raw(prefix + "image").clone(), size = data.get(prefix + "size");
    const auto height = static_cast<std::int64_t>(size.data<float>()[0]);
    const auto width = static_cast<std::int64_t>(size.data<float>()[1]);
    const double boxed = max_abs_diff(letterbox(image, width, height), data.raw(prefix + "letterboxed"));
    const double resized =
        max_abs_diff(prepare_reference_image(image, width, height), data.raw(prefix + "resized"));
    std::printf("image %d in %lldx%lld: letterboxed within %g, resized within %g levels\n", i,
                static_cast<long long>(width), static_cast<long long>(height), boxed, resized);
    EXPECT_EQ(boxed, 0) << i;
    EXPECT_EQ(resized, 0) << i;
  }
  EXPECT_GT(i, 0);
}

}  // namespace
}  // namespace magi
