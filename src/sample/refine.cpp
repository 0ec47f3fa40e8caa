// SPDX-License-Identifier: Apache-2.0
#include "sample/refine.h"

#include <algorithm>
#include <cmath>

namespace magi {
namespace {

/// Where output i of an axis lies between its inputs: value = (1−fraction)·in[low] + fraction·in[high].
struct Place {
  std::int64_t low, high;
  float fraction;
};

/// Corners aligned: output i sits at i·(in−1)/(out−1).
std::vector<Place> places(std::int64_t in, std::int64_t out) {
  std::vector<Place> result;
  for (std::int64_t i = 0; i < out; ++i) {
    const std::int64_t whole = out > 1 ? i * (in - 1) / (out - 1) : 0;
    const std::int64_t rest = out > 1 ? i * (in - 1) % (out - 1) : 0;
    result.push_back(
        {whole, std::min(whole + 1, in - 1),
         rest ? static_cast<float>(static_cast<double>(rest) / static_cast<double>(out - 1)) : 0.0f});
  }
  return result;
}

float mix(float low, float high, float fraction) {
  return low * (1 - fraction) + high * fraction;
}

}  // namespace

Tensor upsample_latent(const Tensor& latent, std::int64_t height, std::int64_t width) {
  const std::int64_t rank = latent.rank();
  require(rank == 4 || (rank == 5 && latent.dim(0) == 1), "upsampling: latents are {}, expected [C,T,H,W]",
          to_string(latent.shape()));
  const std::int64_t channels = latent.dim(-4), frames = latent.dim(-3);
  const std::int64_t in_height = latent.dim(-2), in_width = latent.dim(-1);
  require(latent.numel() > 0 && height > 0 && width > 0, "upsampling: latents {} to {}x{} cells",
          to_string(latent.shape()), height, width);

  const auto t_places = places(frames, 2 * frames - 1);
  const auto h_places = places(in_height, height);
  const auto w_places = places(in_width, width);
  const auto out_frames = static_cast<std::int64_t>(t_places.size());
  Shape shape{channels, out_frames, height, width};
  if (rank == 5) shape.insert(shape.begin(), 1);
  Tensor result = Tensor::empty(DType::f32, std::move(shape));
  const float* in = latent.data<float>();
  float* out = result.data<float>();
#pragma omp parallel for collapse(2) schedule(static) if (result.numel() > 32768)
  for (std::int64_t c = 0; c < channels; ++c)
    for (std::int64_t t = 0; t < out_frames; ++t) {
      const auto& tp = t_places[static_cast<std::size_t>(t)];
      const float* before = in + (c * frames + tp.low) * in_height * in_width;
      const float* after = in + (c * frames + tp.high) * in_height * in_width;
      float* row = out + (c * out_frames + t) * height * width;
      for (const auto& hp : h_places) {
        const std::int64_t top = hp.low * in_width, bottom = hp.high * in_width;
        const auto bilinear = [&](const float* frame, const Place& wp) {
          return mix(mix(frame[top + wp.low], frame[top + wp.high], wp.fraction),
                     mix(frame[bottom + wp.low], frame[bottom + wp.high], wp.fraction), hp.fraction);
        };
        for (const auto& wp : w_places) *row++ = mix(bilinear(before, wp), bilinear(after, wp), tp.fraction);
      }
    }
  return result;
}

std::vector<float> zero_snr_table() {
  constexpr int steps = 1000;
  const double first = std::sqrt(0.00085), last = std::sqrt(0.012);
  std::vector<float> table;
  double product = 1;
  for (int i = 0; i < steps; ++i) {
    const double root_beta = first + (last - first) / (steps - 1) * i;
    product *= 1 - root_beta * root_beta;
    table.push_back(std::sqrt(static_cast<float>(product)));
  }
  const float a_first = table.front(), a_last = table.back();
  for (float& a : table) a = (a - a_last) * (a_first / (a_first - a_last));
  return table;
}

Tensor renoise(const Tensor& latent, const Tensor& noise, std::int64_t index) {
  const auto table = zero_snr_table();
  require(index >= 0 && index < static_cast<std::int64_t>(table.size()),
          "refiner noise value is {}, expected 0 to 999", index);
  require(latent.shape() == noise.shape(), "renoising: latents {} with noise {}", to_string(latent.shape()),
          to_string(noise.shape()));
  const float signal = table[static_cast<std::size_t>(index)];
  const float noise_share = std::sqrt(1 - signal * signal);
  Tensor result = Tensor::empty(DType::f32, latent.shape());
  const float* x = latent.data<float>();
  const float* e = noise.data<float>();
  float* out = result.data<float>();
  const std::int64_t n = latent.numel();
#pragma omp parallel for schedule(static) if (n > 32768)
  for (std::int64_t i = 0; i < n; ++i) out[i] = x[i] * signal + e[i] * noise_share;
  return result;
}

}  // namespace magi
