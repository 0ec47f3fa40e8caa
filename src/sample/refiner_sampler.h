// SPDX-License-Identifier: Apache-2.0
// The refiner's denoising loop: text branch and null branch in turn, guidance, UniPC step (pipeline.md
// section 6).
#pragma once

#include <functional>

#include "core/progress.h"
#include "model/refiner.h"
#include "sample/guidance.h"
#include "sample/preview_sampler.h"
#include "sample/unipc.h"

namespace magi {

/// Denoises `latent` [C,T,H,W] (renoised, f32 on the host) along `schedule`; guidance as refiner_guidance()
/// gives it.
Tensor sample_refiner(RefinerRun& text, RefinerRun& null_text, Tensor latent, const Schedule& schedule,
                      const GuidanceOptions& guidance, Progress& progress,
                      const std::function<void(const StepRecord&, const Tensor&)>& on_step = {});

}  // namespace magi
