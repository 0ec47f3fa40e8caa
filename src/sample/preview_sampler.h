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

/// A run between two steps: all that it needs to go on, so that one which was kept and taken up again ends
/// with the same bits. By itself, the latents are noise before the first step.
struct SampleState {
  Latents latents;
  UniPCState video = {}, audio = {};
  std::int64_t step() const { return video.step; }  ///< the next one
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

/// Denoises from `start` along `schedule`. `on_step` sees each finished step and what it left, of which the
/// tensors are never written again. Throws Error when a velocity is not finite, Cancelled when asked to stop.
Latents sample_preview(PreviewRun& run, SampleState start, const Schedule& schedule,
                       const GuidanceOptions& guidance, Progress& progress,
                       const std::function<void(const StepRecord&, const SampleState&)>& on_step = {});

/// Throws Error, naming the step and `what`, unless every value of the host tensor is finite.
void require_finite(const Tensor& values, std::string_view what, std::int64_t step);

}  // namespace magi
