// SPDX-License-Identifier: Apache-2.0
// bf16 results of a mixture of experts: apart the rows where rounding made the router choose otherwise (a
// change of whole experts, many times as large as rounding is), and the rest, where arithmetic shows.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <string>
#include <string_view>
#include <vector>

#include "model/dit.h"
#include "support/golden.h"

namespace magi {

/// The routers' choices of a forward pass, a layer with experts after the other: give it what a probe hears.
class ExpertChoices {
 public:
  void hear(Ops& ops, std::string_view name, const Tensor& value) {
    if (name == "routing_index") layers_.push_back(as_f32(ops.download(value)));
  }
  std::int64_t layers() const { return std::ssize(layers_); }

  /// Of each row: whether a head's experts differ in one of the first `layers` such layers.
  std::vector<bool> differ_from(const ExpertChoices& other, std::int64_t layers) const {
    std::vector<bool> differ(static_cast<std::size_t>(layers_.at(0).dim(0)));
    for (std::int64_t l = 0; l < layers; ++l) {
      const Tensor &mine = layers_.at(static_cast<std::size_t>(l)),
                   &theirs = other.layers_.at(static_cast<std::size_t>(l));
      const std::int64_t k = mine.dim(2), heads = mine.dim(1);
      for (std::int64_t i = 0; i < mine.dim(0) * heads; ++i)
        if (sorted(mine, i, k) != sorted(theirs, i, k)) differ[static_cast<std::size_t>(i / heads)] = true;
    }
    return differ;
  }

 private:
  static std::vector<float> sorted(const Tensor& index, std::int64_t i, std::int64_t k) {
    std::vector<float> experts(index.data<float>() + i * k, index.data<float>() + (i + 1) * k);
    std::sort(experts.begin(), experts.end());
    return experts;
  }
  std::vector<Tensor> layers_;
};

/// ‖got − want‖ of each row (the last axis).
inline std::vector<double> row_errors(const Tensor& got, const Tensor& want) {
  const std::int64_t width = want.dim(-1);
  std::vector<double> errors(static_cast<std::size_t>(want.numel() / width));
  for (std::size_t r = 0; r < errors.size(); ++r) {
    double sum = 0;
    for (std::int64_t i = 0; i < width; ++i) {
      const std::size_t at = r * static_cast<std::size_t>(width) + static_cast<std::size_t>(i);
      const double d = double{got.data<float>()[at]} - double{want.data<float>()[at]};
      sum += d * d;
    }
    errors[r] = std::sqrt(sum);
  }
  return errors;
}

/// Root mean square of those errors for which `counts` is true, and how many they are.
template <typename Counts>
std::pair<double, std::int64_t> root_mean_square(const std::vector<double>& errors, Counts counts) {
  double sum = 0;
  std::int64_t n = 0;
  for (std::size_t r = 0; r < errors.size(); ++r)
    if (counts(r)) sum += errors[r] * errors[r], ++n;
  return {n ? std::sqrt(sum / static_cast<double>(n)) : 0, n};
}

/// Rows of `got`, of the bf16 reference and of f32, matrices of as many rows; `flipped`: those of `got` that
/// routing decided. Checked: where it did not, the distance to f32 (root mean square over the rows) is within
/// 1.25 of the reference's; and it did so to no more rows than to the reference's, but for chance. Which rows
/// of the reference those are is seen by their error, more than twice the median of the lower half;
/// `got` is counted by the same measure.
inline void expect_bf16_rows(const std::string& name, const Tensor& got, const Tensor& reference,
                             const Tensor& exact, const std::vector<bool>& flipped) {
  const std::vector<double> ours = row_errors(got, exact), theirs = row_errors(reference, exact);
  ASSERT_EQ(ours.size(), flipped.size()) << name;
  std::vector<double> by_size = theirs;
  std::sort(by_size.begin(), by_size.end());
  const double calm = 2 * by_size[by_size.size() / 4];
  const auto [our_error, unflipped] = root_mean_square(ours, [&](std::size_t r) { return !flipped[r]; });
  const auto [their_error, calm_rows] =
      root_mean_square(theirs, [&](std::size_t r) { return theirs[r] <= calm; });
  const std::int64_t rows = std::ssize(ours), flips = rows - unflipped, their_large = rows - calm_rows,
                     large = std::count_if(ours.begin(), ours.end(), [&](double e) { return e > calm; });
  // Chance: three standard deviations of a count of rare events.
  const double limit = static_cast<double>(their_large) + 3 * std::sqrt(static_cast<double>(their_large) + 1);
  std::printf(
      "%s: without the %d of %d rows that choose other experts, %.2f of the reference's distance (limit "
      "1.25); rows far off: %d, the reference's %d (limit %.0f)\n",
      name.c_str(), static_cast<int>(flips), static_cast<int>(rows), our_error / their_error,
      static_cast<int>(large), static_cast<int>(their_large), limit);
  EXPECT_TRUE(our_error <= 1.25 * their_error) << name;
  EXPECT_LE(static_cast<double>(large), limit) << name;
}

}  // namespace magi
