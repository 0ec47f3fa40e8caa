// SPDX-License-Identifier: Apache-2.0
#include "sample/guidance.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "core/in_parts.h"

namespace magi {
namespace {

int sign(float v) {
  return (v > 0) - (v < 0);
}

/// Where moving from b to a overshoots: the guided value grows in a's direction and past the current latent
/// x.
bool skims(float a, float b, float x, float w) {
  const float guided = b + w * (a - b);
  return sign(a - b) == sign(a) && sign(a) == sign(w * a - (w - 1) * b) && sign(guided) == sign(guided - x);
}

/// The unconditional value that limits overshooting elements to guidance of scale s.
float skimmed(float c, float u, float x, float w, float s) {
  if (!(w > 1)) return u;
  const float f = (s - 1) / (w - 1);
  if (skims(c, u, x, w)) u = c * (1 - f) + u * f;
  if (skims(u, c, x, w)) u = c * (1 - f) + u * f;
  return u;
}

/// u + w·(c−u) on rows of equal length; row r takes scale r mod scales.size().
Tensor join(const Tensor& cond, const Tensor& uncond, const Tensor& latent, std::int64_t rows,
            const std::vector<float>& scales, const GuidanceOptions& options, TensorPool& pool) {
  require(cond.shape() == uncond.shape() && cond.shape() == latent.shape(),
          "guidance: velocities {} and {} at latents {}", to_string(cond.shape()), to_string(uncond.shape()),
          to_string(latent.shape()));
  Tensor result = pool.empty(DType::f32, cond.shape());
  const float* c = cond.data<float>();
  const float* u = uncond.data<float>();
  const float* x = latent.data<float>();
  float* v = result.data<float>();
  const std::int64_t n = cond.numel();
  const std::int64_t length = rows ? n / rows : 0;
  const bool skim = options.skimmed && std::any_of(u, u + n, [](float value) { return value != 0; });
  in_ranges(n, length, [&](std::int64_t first, std::int64_t end) {
    for (std::int64_t row = first; row < end; row += length) {
      const float w = scales[static_cast<std::size_t>(row / length) % scales.size()];
      for (std::int64_t i = row; i < row + length; ++i) {
        const float base = skim ? skimmed(c[i], u[i], x[i], w, options.skimmed_scale) : u[i];
        v[i] = base + w * (c[i] - base);
      }
    }
  });
  return result;
}

/// One channel: `count` elements, `step` apart.
struct Channel {
  std::int64_t first, step, count;
};

/// Population standard deviation.
double deviation(const float* values, const Channel& channel) {
  double mean = 0, square = 0;
  const auto at = [&](std::int64_t k) {
    return static_cast<double>(values[channel.first + k * channel.step]);
  };
  for (std::int64_t k = 0; k < channel.count; ++k) mean += at(k);
  mean /= static_cast<double>(channel.count);
  for (std::int64_t k = 0; k < channel.count; ++k) square += (at(k) - mean) * (at(k) - mean);
  return std::sqrt(square / static_cast<double>(channel.count));
}

/// v ← v·(φ·std(c)/std(v) + 1 − φ) per channel.
void rescale(Tensor& velocity, const Tensor& cond, const std::vector<Channel>& channels, float share) {
  if (!(share > 0)) return;
  float* v = velocity.data<float>();
  const float* c = cond.data<float>();
  in_parts(std::ssize(channels), [&](std::int64_t i) {
    const Channel& channel = channels[static_cast<std::size_t>(i)];
    const double ratio = deviation(c, channel) / std::max(deviation(v, channel), 1e-6);
    const auto factor = static_cast<float>(share * ratio + (1 - share));
    for (std::int64_t k = 0; k < channel.count; ++k) v[channel.first + k * channel.step] *= factor;
  });
}

std::vector<float> frame_scales(std::int64_t frames, double timestep, const GuidanceOptions& options) {
  std::vector<float> scales(static_cast<std::size_t>(frames), options.video_scale);
  if (options.trick) {
    const auto count = std::clamp<std::int64_t>(options.trick_frames, 0, frames);
    std::fill_n(scales.begin(), count, std::min(options.trick_scale, options.video_scale));
  }
  if (options.dynamic && timestep < options.dynamic_start)
    for (float& w : scales) w = std::min(w, options.dynamic_cutoff);
  return scales;
}

float scale_in(const ConfigNode& config, std::string_view key, float otherwise) {
  return static_cast<float>(config.number(key, otherwise, -1000, 1000));
}

void read_trick(const ConfigNode& config, GuidanceOptions& options) {
  options.trick = config.boolean("use_cfg_trick", options.trick);
  options.trick_frames = config.integer("cfg_trick_start_frame", options.trick_frames, 0);
  options.trick_scale = scale_in(config, "cfg_trick_value", options.trick_scale);
}

}  // namespace

GuidanceOptions preview_guidance(const ConfigNode& config) {
  GuidanceOptions options;
  options.video_scale = scale_in(config, "video_txt_guidance_scale", options.video_scale);
  options.audio_scale = scale_in(config, "audio_txt_guidance_scale", options.audio_scale);
  read_trick(config, options);
  options.dynamic = config.boolean("use_dynamic_cfg", options.dynamic);
  options.dynamic_start = config.number("dynamic_cfg_start_t", options.dynamic_start);
  options.dynamic_cutoff = scale_in(config, "dynamic_cfg_cutoff_value", options.dynamic_cutoff);
  options.skimmed = config.boolean("use_skimmed_cfg_linear", options.skimmed);
  options.skimmed_scale = scale_in(config, "skimmed_cfg_scale", options.skimmed_scale);
  options.rescale = static_cast<float>(config.number("cfg_rescale", options.rescale, 0, 1));
  options.negative_prompt = config.boolean("use_negative_prompt", options.negative_prompt);
  options.reference_in_uncond = config.boolean("use_ref_for_uncond", options.reference_in_uncond);
  return options;
}

GuidanceOptions refiner_guidance(const ConfigNode& config) {
  GuidanceOptions options;
  options.video_scale = scale_in(config, "magi2_refiner_video_txt_guidance_scale", 2.0f);
  options.audio_scale = scale_in(config, "magi2_refiner_audio_txt_guidance_scale", 5.0f);
  read_trick(config, options);
  return options;
}

Tensor guide_video(const Tensor& cond, const Tensor& uncond, const Tensor& latent, double timestep,
                   const GuidanceOptions& options, TensorPool pool) {
  const std::int64_t rank = cond.rank();
  require(rank == 4 || (rank == 5 && cond.dim(0) == 1), "video guidance: velocity is {}, expected [C,T,H,W]",
          to_string(cond.shape()));
  const std::int64_t channels = cond.dim(-4), frames = cond.dim(-3), cells = cond.dim(-2) * cond.dim(-1);
  require(cond.numel() > 0, "video guidance: velocity {} is empty", to_string(cond.shape()));
  Tensor v =
      join(cond, uncond, latent, channels * frames, frame_scales(frames, timestep, options), options, pool);
  std::vector<Channel> planes;
  for (std::int64_t ch = 0; ch < channels; ++ch) planes.push_back({ch * frames * cells, 1, frames * cells});
  rescale(v, cond, planes, options.rescale);
  return v;
}

Tensor guide_audio(const Tensor& cond, const Tensor& uncond, const Tensor& latent,
                   const GuidanceOptions& options) {
  const std::int64_t rank = cond.rank();
  require(rank == 2 || (rank == 3 && cond.dim(0) == 1), "audio guidance: velocity is {}, expected [A,C]",
          to_string(cond.shape()));
  const std::int64_t length = cond.dim(-2), width = cond.dim(-1);
  TensorPool pool;
  Tensor v = join(cond, uncond, latent, length, {options.audio_scale}, options, pool);
  std::vector<Channel> columns;
  for (std::int64_t ch = 0; ch < width && length > 0; ++ch) columns.push_back({ch, width, length});
  rescale(v, cond, columns, options.rescale);
  return v;
}

}  // namespace magi
