// SPDX-License-Identifier: Apache-2.0
// Classifier-free guidance: one velocity from the conditional and the unconditional one (pipeline.md section
// 4).
#pragma once

#include <cstdint>

#include "core/tensor_pool.h"
#include "io/config.h"

namespace magi {

/// Defaults are the official configuration's; names in comments are its keys.
struct GuidanceOptions {
  float video_scale = 5.0f;  ///< video_txt_guidance_scale
  float audio_scale = 7.0f;  ///< audio_txt_guidance_scale

  bool trick = false;              ///< use_cfg_trick: the first latent frames take at most trick_scale
  std::int64_t trick_frames = 13;  ///< cfg_trick_start_frame
  float trick_scale = 2.0f;        ///< cfg_trick_value
  bool dynamic = false;  ///< use_dynamic_cfg: below a timestep, scales above the cutoff become the cutoff
  double dynamic_start = 500;   ///< dynamic_cfg_start_t
  float dynamic_cutoff = 2.0f;  ///< dynamic_cfg_cutoff_value
  bool skimmed = false;         ///< use_skimmed_cfg_linear
  float skimmed_scale = 3.0f;   ///< skimmed_cfg_scale
  float rescale = 0.0f;  ///< cfg_rescale: share of the conditional velocity's deviation restored, 0 is off
  bool negative_prompt = true;      ///< use_negative_prompt: else the unconditional branch has no text
  bool reference_in_uncond = true;  ///< use_ref_for_uncond: else its reference images are zeros
};

/// From a configuration's `evaluation_config`; absent keys keep the defaults.
GuidanceOptions preview_guidance(const ConfigNode& evaluation_config);
/// The refiner's: its own scales (magi2_refiner_…), of the options the trick alone.
GuidanceOptions refiner_guidance(const ConfigNode& evaluation_config);

/// Video: cond, uncond and the current latent are [48,T,H,W] f32 on the host (a leading axis of 1 is kept);
/// timestep in 0…1000. The result lies in the pool's memory.
Tensor guide_video(const Tensor& cond, const Tensor& uncond, const Tensor& latent, double timestep,
                   const GuidanceOptions& options, TensorPool pool = {});

/// Audio: [A,64]; the trick and dynamic options do not apply.
Tensor guide_audio(const Tensor& cond, const Tensor& uncond, const Tensor& latent,
                   const GuidanceOptions& options);

}  // namespace magi
