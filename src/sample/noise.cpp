// SPDX-License-Identifier: Apache-2.0
#include "sample/noise.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>

namespace magi {
namespace {

constexpr std::int64_t kBlockThreads = 256;
constexpr std::int64_t kMaxBlocks = 132 * 2048 / kBlockThreads;
constexpr std::int64_t kLanes = 256;  // generators advanced together, so that their loops vectorise

using Words = std::array<std::array<std::uint32_t, kLanes>, 4>;
using Normals = std::array<std::array<float, kLanes>, 4>;

/// Philox-4x32-10 of the counters (block, 0, first_thread + lane, 0).
void philox(std::uint64_t seed, std::uint64_t block, std::int64_t first_thread, Words& words) {
  for (std::int64_t lane = 0; lane < kLanes; ++lane) {
    std::uint32_t key0 = static_cast<std::uint32_t>(seed), key1 = static_cast<std::uint32_t>(seed >> 32);
    std::uint32_t x = static_cast<std::uint32_t>(block), y = static_cast<std::uint32_t>(block >> 32);
    std::uint32_t z = static_cast<std::uint32_t>(first_thread + lane), w = 0;
    for (int round = 0; round < 10; ++round) {
      const std::uint64_t a = std::uint64_t{0xD2511F53u} * x;
      const std::uint64_t b = std::uint64_t{0xCD9E8D57u} * z;
      x = static_cast<std::uint32_t>(b >> 32) ^ y ^ key0;
      y = static_cast<std::uint32_t>(b);
      z = static_cast<std::uint32_t>(a >> 32) ^ w ^ key1;
      w = static_cast<std::uint32_t>(a);
      key0 += 0x9E3779B9u;
      key1 += 0xBB67AE85u;
    }
    words[0][lane] = x;
    words[1][lane] = y;
    words[2][lane] = z;
    words[3][lane] = w;
  }
}

// The C library's log and sin choose their code by processor, so their last bits differ between machines.
// These series, in double for arguments that are floats, are good to 1e-13: what remains is far below a
// float's rounding.

/// Natural logarithm of a normal float in (0, 1].
double natural_log(float u) {
  const auto bits = std::bit_cast<std::uint32_t>(u);
  const std::uint32_t above_root_half =
      bits - 0x3f3504f3u;  // exponent field counts from √½, so 1 has exponent 0
  const auto exponent = static_cast<std::int32_t>(above_root_half) >> 23;
  const double m = std::bit_cast<float>((above_root_half & 0x007fffffu) + 0x3f3504f3u);
  const double s = (m - 1.0) / (m + 1.0);
  const double t = s * s;
  double sum = 1.0 / 17;
  for (int odd = 15; odd >= 1; odd -= 2) sum = sum * t + 1.0 / odd;
  return exponent * 0.69314718055994530942 + 2.0 * s * sum;
}

/// Sine and cosine of v in [0, 2π].
void sine_cosine(double v, double& sine, double& cosine) {
  const int quarter = static_cast<int>(v * 0.63661977236758134308 + 0.5);
  const double r = v - quarter * 1.57079632679489661923;
  const double t = r * r;
  double s = -1.0 / 1307674368000;  // 15!
  s = s * t + 1.0 / 6227020800;
  s = s * t - 1.0 / 39916800;
  s = s * t + 1.0 / 362880;
  s = s * t - 1.0 / 5040;
  s = s * t + 1.0 / 120;
  s = s * t - 1.0 / 6;
  s = s * t * r + r;
  double c = 1.0 / 20922789888000;  // 16!
  c = c * t - 1.0 / 87178291200;
  c = c * t + 1.0 / 479001600;
  c = c * t - 1.0 / 3628800;
  c = c * t + 1.0 / 40320;
  c = c * t - 1.0 / 720;
  c = c * t + 1.0 / 24;
  c = c * t - 0.5;
  c = c * t + 1.0;
  const bool swap = quarter & 1;
  sine = swap ? c : s;
  cosine = swap ? s : c;
  if (quarter & 2) sine = -sine;
  if ((quarter + 1) & 2) cosine = -cosine;
}

/// Two words → two normals. The uniform values are rounded to float as cuRAND rounds them: near u = 1 the
/// logarithm amplifies that rounding a thousandfold.
void box_muller(const std::uint32_t* radius_words, const std::uint32_t* angle_words, float* first,
                float* second) {
  constexpr float two_pi = 6.2831855f;
  for (std::int64_t lane = 0; lane < kLanes; ++lane) {
    const float u = static_cast<float>(radius_words[lane]) * 0x1p-32f + 0x1p-33f;
    const float v = static_cast<float>(
        static_cast<double>(static_cast<float>(angle_words[lane])) * (0x1p-32f * two_pi) + 0x1p-33f * two_pi);
    const double rho = std::sqrt(-2.0 * natural_log(u));
    double sine, cosine;
    sine_cosine(v, sine, cosine);
    first[lane] = static_cast<float>(rho * sine);
    second[lane] = static_cast<float>(rho * cosine);
  }
}

}  // namespace

NoiseGenerator::NoiseGenerator(std::uint64_t seed, std::uint64_t offset) : seed_(seed), offset_(offset) {
  require(offset % 4 == 0, "noise: stream offset {} is not a multiple of 4", offset);
}

Tensor NoiseGenerator::randn(Shape shape) {
  Tensor result = Tensor::empty(DType::f32, std::move(shape));
  const std::int64_t n = result.numel();
  if (n == 0) return result;
  float* out = result.data<float>();

  const std::int64_t blocks = std::min(kMaxBlocks, (n + kBlockThreads - 1) / kBlockThreads);
  const std::int64_t threads = kBlockThreads * blocks;
  const std::int64_t rounds = (n - 1) / (4 * threads) + 1;  // Philox blocks each thread draws
  const std::int64_t groups = threads / kLanes;
#pragma omp parallel for schedule(static) if (n > 32768)
  for (std::int64_t task = 0; task < rounds * groups; ++task) {
    const std::int64_t round = task / groups;
    const std::int64_t thread = task % groups * kLanes;
    Words words;
    Normals normals;
    philox(seed_, offset_ / 4 + static_cast<std::uint64_t>(round), thread, words);
    box_muller(words[0].data(), words[1].data(), normals[0].data(), normals[1].data());
    box_muller(words[2].data(), words[3].data(), normals[2].data(), normals[3].data());
    for (std::int64_t j = 0; j < 4; ++j) {
      const std::int64_t first = round * 4 * threads + j * threads + thread;
      const std::int64_t count = std::clamp<std::int64_t>(n - first, 0, kLanes);
      std::copy_n(normals[j].data(), count, out + std::min(first, n));
    }
  }
  offset_ += 4 * static_cast<std::uint64_t>(rounds);
  return result;
}

}  // namespace magi
