// SPDX-License-Identifier: Apache-2.0
// How bf16 results are judged: by their distance to f32, in units of the reference's own bf16 distance. And
// frames.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "support/golden.h"

namespace magi {

/// Median over rows (the last axis) of ‖got − want‖.
inline double median_row_error(const Tensor& got, const Tensor& want) {
  const std::int64_t width = want.dim(-1), rows = want.numel() / width;
  std::vector<double> errors;
  for (std::int64_t r = 0; r < rows; ++r) {
    double sum = 0;
    for (std::int64_t i = r * width; i < (r + 1) * width; ++i) {
      const double d = double{got.data<float>()[i]} - double{want.data<float>()[i]};
      sum += d * d;
    }
    errors.push_back(std::sqrt(sum));
  }
  std::nth_element(errors.begin(), errors.begin() + rows / 2, errors.end());
  return errors[static_cast<std::size_t>(rows / 2)];
}

/// Prints and checks: the L2 distance within `limit` of the reference's, the median row's within 1.25.
inline void expect_bf16_distance(const std::string& name, const Tensor& got, const Tensor& reference,
                                 const Tensor& exact, double limit) {
  const Tensor ours = got.reshape(exact.shape());
  const double l2 = relative_l2(ours, exact) / relative_l2(reference, exact);
  const double row = median_row_error(ours, exact) / median_row_error(reference, exact);
  std::printf(
      "%s: distance to f32 %.3g; in the reference's: L2 %.2f (limit %.2f), median row %.2f (limit 1.25)\n",
      name.c_str(), relative_l2(ours, exact), l2, limit, row);
  EXPECT_TRUE(l2 <= limit) << name;
  EXPECT_TRUE(row <= 1.25) << name;
}

/// At least 99 % of the values within 2 levels.
inline void expect_frames(const char* name, const Tensor& got, const Tensor& want) {
  ASSERT_EQ(got.shape(), want.shape()) << name;
  std::int64_t near = 0;
  for (std::int64_t i = 0; i < got.numel(); ++i)
    near += std::abs(int{got.data<std::uint8_t>()[i]} - int{want.data<std::uint8_t>()[i]}) <= 2;
  const double share = static_cast<double>(near) / static_cast<double>(got.numel());
  std::printf("%s: %.4f %% within 2 levels (at least 99 %%)\n", name, 100 * share);
  EXPECT_GE(share, 0.99) << name;
}

}  // namespace magi
