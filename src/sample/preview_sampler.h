// SPDX-License-Identifier: Apache-2.0
// The preview's denoising loop: velocity, guidance, UniPC step, n times.
#pragma once

#include <cstdint>
#include <functional>
#include <string_view>
#include <vector>

#include "core/progress.h"
#include "model/preview.h"
#include "sample/guidance.h"
#include "sample/unipc.h"

namespace magi {

/// Video [C,T,H,W] and audio [A,C'], f32 on the host.
struct Latents {
  Tensor video, audio;
};

/// The conditional and the unconditional branch of a problem. `negative_text` is used where the guidance says
/// so.
std::vector<Conditioning> guidance_branches(const Tensor& text, const Tensor& negative_text,
                                            const std::vector<ReferenceImage>& images,
                                            const GuidanceOptions& guidance);

struct StepRecord {
  std::int64_t step = 0;
  std::int64_t timestep = 0;
  double sigma = 0;
  double seconds = 0;
};

/// Denoises `latents` (noise, at the schedule's first sigma) along `schedule`. `on_step` sees each finished
/// step and the latents after it. Throws Error when a velocity is not finite, Cancelled when asked to stop.
Latents sample_preview(PreviewRun& run, Latents latents, const Schedule& schedule,
                       const GuidanceOptions& guidance, Progress& progress,
                       const std::function<void(const StepRecord&, const Latents&)>& on_step = {});

/// Throws Error, naming the step and `what`, unless every value of the host tensor is finite.
void require_finite(const Tensor& values, std::string_view what, std::int64_t step);

}  // namespace magi
