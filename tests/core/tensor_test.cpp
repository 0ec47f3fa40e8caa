// SPDX-License-Identifier: Apache-2.0
#include "core/tensor.h"

#include <gtest/gtest.h>

#include <cmath>

namespace magi {
namespace {

TEST(Bf16, RoundsToNearestEvenAndKeepsNaN) {
  EXPECT_EQ(bf16(1.0f).bits, 0x3f80);
  EXPECT_EQ(bf16(std::bit_cast<float>(0x3f808000u)).bits, 0x3f80);  // tie, even below
  EXPECT_EQ(bf16(std::bit_cast<float>(0x3f818000u)).bits, 0x3f82);  // tie, even above
  EXPECT_EQ(bf16(std::bit_cast<float>(0x3f808001u)).bits, 0x3f81);
  EXPECT_TRUE(std::isnan(static_cast<float>(bf16(NAN))));
  EXPECT_TRUE(std::isnan(static_cast<float>(bf16(std::bit_cast<float>(0x7f800001u)))));
}

TEST(F16, DecodesSubnormalsAndInfinity) {
  EXPECT_EQ(static_cast<float>(f16{0x0001}), std::ldexp(1.0f, -24));
  EXPECT_EQ(static_cast<float>(f16{0x3c00}), 1.0f);
  EXPECT_EQ(static_cast<float>(f16{0xfbff}), -65504.0f);
  EXPECT_TRUE(std::isinf(static_cast<float>(f16{0x7c00})));
}

TEST(Tensor, ColumnsKeepThePitch) {
  const std::vector<float> values{0, 1, 2, 3, 4, 5};
  Tensor t = Tensor::of<float>(values, {2, 3});
  Tensor right = t.columns(1, 2);
  EXPECT_FALSE(right.contiguous());
  EXPECT_EQ(right.pitch(), 3);
  Tensor copy = right.clone();
  EXPECT_EQ(std::vector<float>(copy.values<float>().begin(), copy.values<float>().end()),
            (std::vector<float>{1, 2, 4, 5}));
  EXPECT_EQ(right.to(DType::bf16).data<bf16>()[3].bits, bf16(5.0f).bits);
}

TEST(Tensor, RefusesWrongTypesAndShapes) {
  Tensor t = Tensor::zeros(DType::f32, {2, 3});
  EXPECT_THROW(t.data<bf16>(), Error);
  EXPECT_THROW(t.reshape({7}), Error);
  EXPECT_THROW(t.rows(1, 2), Error);
  EXPECT_THROW(Tensor().data<float>(), Error);
}

}  // namespace
}  // namespace magi
