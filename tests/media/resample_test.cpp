// SPDX-License-Identifier: Apache-2.0
#include "media/resample.h"

#include <gtest/gtest.h>

#include <chrono>
#include <cmath>
#include <complex>
#include <numbers>
#include <random>

#include "media/fft.h"
#include "support/expect_error.h"
#include "support/golden.h"

namespace magi {
namespace {

Spectrum noise(std::size_t n) {
  std::mt19937 random(7);
  std::normal_distribution<double> normal;
  Spectrum x(n);
  for (auto& value : x) value = {normal(random), normal(random)};
  return x;
}

double relative(const Spectrum& got, const Spectrum& want) {
  double difference = 0, norm = 0;
  for (std::size_t i = 0; i < want.size(); ++i) {
    difference += std::norm(got[i] - want[i]);
    norm += std::norm(want[i]);
  }
  return std::sqrt(difference / norm);
}

TEST(Fourier, AgreesWithTheDefinition) {
  for (const std::size_t n : {1, 2, 3, 4, 8, 30, 61, 67, 97, 122, 134, 201, 257}) {
    const Spectrum x = noise(n);
    for (const bool inverse : {false, true}) {
      Spectrum want(n);
      for (std::size_t k = 0; k < n; ++k) {
        for (std::size_t j = 0; j < n; ++j) {
          const double angle = 2 * std::numbers::pi * static_cast<double>(j * k % n) / static_cast<double>(n);
          want[k] += x[j] * std::polar(1.0, inverse ? angle : -angle);
        }
      }
      EXPECT_LT(relative(fourier(x, inverse), want), 1e-13) << n;
    }
  }
}

TEST(Fourier, LargePrimesTakeNoQuadraticTime) {
  const std::size_t n = 441'029;  // a prime
  const Spectrum x = noise(n);
  const auto start = std::chrono::steady_clock::now();
  Spectrum back = fourier(fourier(x, false), true);
  const std::chrono::duration<double> elapsed = std::chrono::steady_clock::now() - start;
  for (auto& value : back) value /= static_cast<double>(n);
  std::printf("two transforms of %zu points: %.3f s, relative L2 %.3g\n", n, elapsed.count(),
              relative(back, x));
  EXPECT_LT(relative(back, x), 1e-12);
  EXPECT_LT(elapsed.count(), 20);  // n² would take minutes
}

// scipy.signal.resample of ((37·i²) mod 101)/50 − 1, i < n: growing and shrinking, odd and even lengths.
TEST(Resample, AgreesWithScipy) {
  struct Case {
    int n;
    std::vector<double> want;
  };
  const std::vector<Case> cases{
      {7, {-0.787375152, -0.222408898, -0.127168145, 0.270332853, -0.761952086}},
      {8, {-0.192408550, -0.527024062, 0.301431970, -0.370387036, -0.061612322}},
      {8, {-0.935000000, 0.123747661, -0.601828144, 0.805000000, -1.200946206, 0.789026689}},
      {7, {-1.000000000, -0.027575464, -0.451508149, 0.391155381, -0.163509251, -0.702848231}},
      {9, {-1.115001434, 0.037655761, -0.220737499, 0.206251954, -0.684261066, 0.802758952}},
      {7,
       {-1.000000000, -0.596255069, 0.238227173, -0.451508149, -0.246065555, 0.747537477, -0.163509251,
        -0.884774485, -0.575080712}},
      {8,
       {-1.000000000, -0.723712607, 0.221118195, -0.259781950, -0.478703235, 0.465780355, 0.533962116,
        -0.848994443, -0.971777553, 0.639029688, 0.553079433}},
      {8,
       {-1.000000000, -0.601391247, 0.229464933, -0.464247224, -0.159915381, 0.740000000, -0.262814232,
        -1.208613945, 0.343264680, 0.684252416}},
      {6,
       {-1.000000000, -0.645213549, -0.260000000, 0.036970116, -0.060000000, -0.441149669, -0.400000000,
        0.278546882, 0.740000000, 0.256363218, -0.680000000, -1.145516998}},
      {5,
       {-1.000000000, -0.908561804, 0.115706578, 0.091613522, -0.616380780, -0.212353770, 0.716674202,
        0.245302052}},
      {2, {-1.000000000, -0.630000000, -0.260000000, -0.630000000}},
      {4, {-0.900000000, 0.040000000}},
      {1, {-1.000000000, -1.000000000, -1.000000000}},
      {3, {-0.440000000}},
  };
  for (const auto& [n, want] : cases) {
    Tensor waveform = Tensor::empty(DType::f32, {3, n});
    for (int i = 0; i < n; ++i) {
      const auto value = static_cast<float>((i * i * 37 % 101) / 50.0 - 1);
      waveform.data<float>()[i] = value;
      waveform.data<float>()[n + i] = -2 * value;
      waveform.data<float>()[2 * n + i] = 3 * value;
    }
    const Tensor got = resample(waveform, static_cast<std::int64_t>(want.size()));
    ASSERT_EQ(got.shape(), (Shape{static_cast<std::int64_t>(want.size()), 3}));
    for (std::size_t i = 0; i < want.size(); ++i) {
      EXPECT_NEAR(got.data<float>()[3 * i], want[i], 1e-6) << n << " to " << want.size() << " at " << i;
      EXPECT_NEAR(got.data<float>()[3 * i + 1], -2 * want[i], 2e-6);
      EXPECT_NEAR(got.data<float>()[3 * i + 2], 3 * want[i], 3e-6);
    }
  }
}

TEST(Resample, TenSecondsTakeWellUnderASecond) {
  const std::int64_t n = 512'000;
  Tensor waveform = Tensor::empty(DType::f32, {2, n});
  for (std::int64_t i = 0; i < n; ++i) {
    waveform.data<float>()[i] = std::sin(static_cast<float>(i) * 0.01f);
    waveform.data<float>()[n + i] = std::cos(static_cast<float>(i) * 0.02f);
  }
  const auto start = std::chrono::steady_clock::now();
  const Tensor audio = resample(waveform, resampled_length(n));
  const std::chrono::duration<double> elapsed = std::chrono::steady_clock::now() - start;
  std::printf("512000 to %lld samples, stereo: %.3f s\n", static_cast<long long>(audio.dim(0)),
              elapsed.count());
  EXPECT_EQ(audio.dim(0), 441'000);
}

TEST(Resample, RefusesWhatIsNoWaveform) {
  expect_error([] { resample(Tensor::zeros(DType::f32, {2, 0}), 5); }, "expected a waveform");
  expect_error([] { resample(Tensor::zeros(DType::u8, {2, 3}), 5); }, "expected a waveform");
  expect_error([] { resample(Tensor::zeros(DType::f32, {2, 3}), 0); }, "cannot make 0 samples");
}

TEST(GoldenResample, AudioDecode) {
  GOLDEN_CASE(data, "audio_decode");
  int compared = 0;
  for (const auto& [name, info] : data.store().entries()) {
    if (!name.starts_with("waveform_")) continue;
    const std::string length = name.substr(std::string("waveform_").size());
    const Tensor waveform = data.get(name), want = data.get("resampled_" + length);
    ASSERT_EQ(waveform.rank(), 3);
    const Tensor got =
        resample(waveform.reshape({waveform.dim(1), waveform.dim(2)}), resampled_length(waveform.dim(2)));
    expect_close("resampled_" + length, got, want, 1e-5);
    ++compared;
  }
  EXPECT_GT(compared, 0);
}

}  // namespace
}  // namespace magi
