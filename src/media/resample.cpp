// SPDX-License-Identifier: Apache-2.0
#include "media/resample.h"

#include <algorithm>

#include "media/fft.h"

namespace magi {
namespace {

/// Both lengths share the frequencies −N/2 … N/2, N the smaller length. For even N the two signs of N/2 are
/// one bin of the shorter transform and two of the longer: shrinking adds them up, growing gives each half.
Spectrum change_length(const Spectrum& from, std::size_t m) {
  const std::size_t n = from.size(), common = std::min(n, m), half = (common + 1) / 2;
  Spectrum to(m);
  for (std::size_t k = 0; k < half; ++k) to[k] = from[k];
  for (std::size_t k = 1; k < half; ++k) to[m - k] = from[n - k];
  if (common % 2 == 0) {
    const std::size_t nyquist = common / 2;
    if (m < n) {
      to[nyquist] = from[nyquist] + from[n - nyquist];
    } else if (m > n) {
      to[nyquist] = to[m - nyquist] = 0.5 * from[nyquist];
    } else {
      to[nyquist] = from[nyquist];
    }
  }
  return to;
}

}  // namespace

std::int64_t resampled_length(std::int64_t decoder_samples) {
  return decoder_samples * 441 / 512;
}

Tensor resample(const Tensor& waveform, std::int64_t samples) {
  require(waveform.rank() == 2 && waveform.dtype() == DType::f32 && waveform.numel() > 0,
          "resample: expected a waveform f32 [channels, samples], got {} {}", name_of(waveform.dtype()),
          to_string(waveform.shape()));
  require(samples > 0, "resample: cannot make {} samples", samples);
  const std::int64_t channels = waveform.dim(0), n = waveform.dim(1);
  Tensor result = Tensor::empty(DType::f32, {samples, channels});
  float* out = result.data<float>();

  // The transform is linear and real signals stay real, so two channels travel as one complex signal.
  for (std::int64_t c = 0; c < channels; c += 2) {
    const bool pair = c + 1 < channels;
    const float* left = waveform.data<float>() + c * waveform.pitch();
    const float* right = pair ? left + waveform.pitch() : nullptr;
    Spectrum signal(static_cast<std::size_t>(n));
    for (std::int64_t i = 0; i < n; ++i) signal[i] = {left[i], pair ? right[i] : 0.0f};
    signal = fourier(change_length(fourier(signal, false), static_cast<std::size_t>(samples)), true);
    for (std::int64_t i = 0; i < samples; ++i) {
      out[i * channels + c] = static_cast<float>(signal[i].real() / static_cast<double>(n));
      if (pair) out[i * channels + c + 1] = static_cast<float>(signal[i].imag() / static_cast<double>(n));
    }
  }
  return result;
}

}  // namespace magi
