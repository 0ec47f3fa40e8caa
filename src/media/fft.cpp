// SPDX-License-Identifier: Apache-2.0
#include "media/fft.h"

#include <cstdint>
#include <kissfft/kissfft.hh>
#include <numbers>

namespace magi {
namespace {

std::size_t largest_prime_factor(std::size_t n) {
  std::size_t largest = 1;
  for (std::size_t p = 2; p * p <= n; ++p) {
    while (n % p == 0) {
      largest = p;
      n /= p;
    }
  }
  return n > 1 ? n : largest;
}

Spectrum mixed_radix(const Spectrum& x, bool inverse) {
  Spectrum result(x.size());
  kissfft<double>(x.size(), inverse).transform(x.data(), result.data());
  return result;
}

/// Bluestein: jk = (j² + k² − (k−j)²)/2 turns the sum into a convolution with a chirp, done at a power of
/// two.
Spectrum chirp_z(const Spectrum& x, bool inverse) {
  const std::size_t n = x.size();
  std::size_t padded = 1;
  while (padded < 2 * n - 1) padded *= 2;

  Spectrum chirp(n);
  for (std::uint64_t j = 0; j < n; ++j) {
    const auto angle = std::numbers::pi * static_cast<double>(j * j % (2 * n)) / static_cast<double>(n);
    chirp[j] = std::polar(1.0, inverse ? angle : -angle);
  }
  Spectrum signal(padded), kernel(padded);
  for (std::size_t j = 0; j < n; ++j) {
    signal[j] = x[j] * chirp[j];
    kernel[j] = std::conj(chirp[j]);
    if (j > 0) kernel[padded - j] = std::conj(chirp[j]);
  }
  signal = mixed_radix(signal, false);
  kernel = mixed_radix(kernel, false);
  for (std::size_t i = 0; i < padded; ++i) signal[i] *= kernel[i];
  signal = mixed_radix(signal, true);

  Spectrum result(n);
  for (std::size_t k = 0; k < n; ++k) result[k] = signal[k] * chirp[k] / static_cast<double>(padded);
  return result;
}

}  // namespace

Spectrum fourier(const Spectrum& x, bool inverse) {
  // kissfft's cost grows with the sum of the prime factors; beyond this one three powers of two are cheaper.
  constexpr std::size_t kLargestRadix = 61;
  if (x.size() <= 1) return x;
  return largest_prime_factor(x.size()) <= kLargestRadix ? mixed_radix(x, inverse) : chirp_z(x, inverse);
}

}  // namespace magi
