// SPDX-License-Identifier: Apache-2.0
#include "sample/noise.h"

#include <omp.h>

#include <bit>
#include <regex>

#include "support/golden.h"

namespace magi {
namespace {

constexpr double kTolerance = 3e-6;  // the GPU's fast sine

/// "s42_3_shape" → seeds, and the number of draws of each in sequence.
std::map<std::uint64_t, int> recorded_draws(const GoldenCase& golden) {
  std::map<std::uint64_t, int> draws;
  const std::regex name("s([0-9]+)_([0-9]+)_shape");
  for (const auto& [key, info] : golden.store().entries()) {
    std::smatch match;
    if (std::regex_match(key, match, name)) ++draws[std::stoull(match[1])];
  }
  return draws;
}

TEST(GoldenNoise, EqualsTorchCudaRandn) {
  GOLDEN_CASE(golden, "torch_randn");
  const auto draws = recorded_draws(golden);
  ASSERT_FALSE(draws.empty());
  double worst = 0;
  for (const auto& [seed, count] : draws) {
    NoiseGenerator generator(seed);
    for (int draw = 0; draw < count; ++draw) {
      const std::string key = "s" + std::to_string(seed) + "_" + std::to_string(draw) + "_";
      const Tensor shape = golden.raw(key + "shape");
      const Tensor noise =
          generator.randn({shape.values<std::int64_t>().begin(), shape.values<std::int64_t>().end()});
      const auto values = noise.values<float>();
      const Tensor head = golden.get(key + "head"), tail = golden.get(key + "tail"),
                   sampled = golden.get(key + "val");
      const Tensor flat = noise.reshape({noise.numel()});
      worst = std::max(worst, max_abs_diff(flat.rows(0, head.numel()), head));
      worst = std::max(worst, max_abs_diff(flat.rows(flat.numel() - tail.numel(), tail.numel()), tail));
      const Tensor index = golden.raw(key + "idx");
      for (std::int64_t k = 0; k < index.numel(); ++k) {
        const float value = values[static_cast<std::size_t>(index.data<std::int64_t>()[k])];
        worst = std::max(worst, static_cast<double>(std::abs(value - sampled.data<float>()[k])));
      }
      double mean = 0, square = 0;
      for (float v : values) {
        mean += v;
        square += double{v} * v;
      }
      const Tensor moments = golden.raw(key + "moments");
      EXPECT_NEAR(mean / values.size(), moments.data<double>()[0], kTolerance);
      EXPECT_NEAR(square / values.size(), moments.data<double>()[1], kTolerance);
    }
  }
  std::printf("noise: largest difference %.3g (tolerance %.3g)\n", worst, kTolerance);
  EXPECT_LE(worst, kTolerance);
}

std::vector<float> draw(std::uint64_t seed, int threads) {
  const int before = omp_get_max_threads();
  omp_set_num_threads(threads);
  const Tensor noise = NoiseGenerator(seed).randn({48, 3, 5, 7, 31});
  omp_set_num_threads(before);
  return {noise.values<float>().begin(), noise.values<float>().end()};
}

TEST(Noise, DoesNotDependOnThreads) {
  const auto one = draw(11, 1);
  EXPECT_EQ(one, draw(11, 2));
  EXPECT_EQ(one, draw(11, 5));
  EXPECT_NE(one, draw(12, 1));
}

/// The same bits on every machine and with every compiler: compared with a digest recorded once.
TEST(Noise, BitsAreFixed) {
  std::uint64_t digest = 14695981039346656037u;  // FNV-1a
  for (float v : draw(2024, 2)) digest = (digest ^ std::bit_cast<std::uint32_t>(v)) * 1099511628211u;
  EXPECT_EQ(digest, 7884852785971298411u);
}

TEST(Noise, AStreamCanBeContinued) {
  NoiseGenerator whole(5);
  whole.randn({1000});
  const std::uint64_t offset = whole.offset();
  const Tensor second = whole.randn({300});
  EXPECT_EQ(max_abs_diff(NoiseGenerator(5, offset).randn({300}), second), 0);
  EXPECT_EQ(whole.randn({0, 4}).numel(), 0);
  EXPECT_EQ(whole.offset(), offset + 4);
  EXPECT_THROW(NoiseGenerator(5, 3), Error);
}

}  // namespace
}  // namespace magi
