// SPDX-License-Identifier: Apache-2.0
#include "ops/cpu/vector_math.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <random>
#include <vector>

namespace magi {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();

MAGI2_SIMD void exp_vectors(const float* x, float* y, std::int64_t n) {
  for (std::int64_t i = 0; i < n; i += kLanes) store(y + i, fast_exp(load(x + i)));
}
MAGI2_SIMD void exp_loop(const float* x, float* y, std::int64_t n) {
  for (std::int64_t i = 0; i < n; ++i) y[i] = fast_exp(x[i]);
}
MAGI2_SIMD void round_vectors(const float* x, bf16* y, std::int64_t n) {
  for (std::int64_t i = 0; i < n; i += kLanes) store(y + i, load(x + i));
}

TEST(VectorMath, ExpIsAccurateAndEqualInAllForms) {
  std::vector<float> x;
  for (float v = -87.0f; v < 88.7f; v += 0.0137f) x.push_back(v);
  x.resize(x.size() / kLanes * kLanes);
  std::vector<float> a(x.size()), b(x.size());
  exp_vectors(x.data(), a.data(), static_cast<std::int64_t>(x.size()));
  exp_loop(x.data(), b.data(), static_cast<std::int64_t>(x.size()));
  double worst = 0;
  for (std::size_t i = 0; i < x.size(); ++i) {
    const double exact = std::exp(static_cast<double>(x[i]));
    worst = std::max(worst, std::abs(a[i] - exact) / exact);
    ASSERT_EQ(a[i], b[i]);
    ASSERT_EQ(a[i], fast_exp(x[i]));
  }
  EXPECT_LT(worst, 2.0e-7);
}

TEST(VectorMath, ExpAtTheEdges) {
  EXPECT_EQ(fast_exp(0.0f), 1.0f);
  EXPECT_EQ(fast_exp(-kInfinity), 0.0f);
  EXPECT_EQ(fast_exp(-1e30f), 0.0f);
  EXPECT_EQ(fast_exp(kInfinity), kInfinity);
  EXPECT_EQ(fast_exp(88.8f), kInfinity);
  EXPECT_TRUE(std::isfinite(fast_exp(88.7f)));
  EXPECT_NEAR(fast_exp(-95.0f), std::exp(-95.0f), 2e-45f);
  EXPECT_TRUE(std::isnan(fast_exp(std::nanf(""))));
}

TEST(VectorMath, SigmoidSiluSwiglu) {
  for (float x : {-200.0f, -20.0f, -1.5f, 0.0f, 0.3f, 7.5f, 90.0f}) {
    EXPECT_NEAR(sigmoid(x), 1.0 / (1.0 + std::exp(-static_cast<double>(x))), 2e-7);
    EXPECT_NEAR(silu(x), x / (1.0 + std::exp(-static_cast<double>(x))), 2e-7 * (1 + std::abs(x)));
    for (float b : {-9.0f, 0.5f, 8.0f}) {
      const double a7 = std::min(x, 7.0f), b7 = std::clamp(b, -7.0f, 7.0f);
      const double expected = a7 / (1.0 + std::exp(-1.702 * a7)) * (b7 + 1);
      EXPECT_NEAR(swiglu7(x, b), expected, 1e-6 * (1 + std::abs(expected)));
    }
  }
  EXPECT_TRUE(std::isnan(swiglu7(std::nanf(""), 1.0f)));
  EXPECT_TRUE(std::isnan(swiglu7(1.0f, std::nanf(""))));
}

TEST(VectorMath, StoreRoundsAsTheScalarConversion) {
  std::mt19937 random(1);
  std::vector<float> x(4096);
  for (float& v : x) v = std::bit_cast<float>(static_cast<std::uint32_t>(random()));
  x[0] = kInfinity;
  x[1] = std::bit_cast<float>(0x7f800001u);  // a NaN whose upper half alone would be infinity
  x[2] = std::bit_cast<float>(0x3f808000u);  // a tie, to even
  x[3] = std::bit_cast<float>(0x3f818000u);
  std::vector<bf16> y(x.size());
  round_vectors(x.data(), y.data(), static_cast<std::int64_t>(x.size()));
  for (std::size_t i = 0; i < x.size(); ++i) ASSERT_EQ(y[i].bits, bf16(x[i]).bits) << i;
}

TEST(VectorMath, PartialLoadsAndSum) {
  const float x[3] = {1, 2, 4};
  EXPECT_EQ(sum(load(x, 3)), 7.0f);
  float y[3] = {0, 0, 0};
  store(y, load(x, 3), 2);
  EXPECT_EQ(y[1], 2.0f);
  EXPECT_EQ(y[2], 0.0f);
}

}  // namespace
}  // namespace magi
