// SPDX-License-Identifier: Apache-2.0
#include "sample/refiner_sampler.h"

#include <chrono>

namespace magi {

Tensor sample_refiner(RefinerRun& text, RefinerRun& null_text, Tensor latent, const Schedule& schedule,
                      const GuidanceOptions& guidance, Progress& progress,
                      const std::function<void(const StepRecord&, const Tensor&)>& on_step) {
  UniPC solver(schedule, {}, text.pool());
  for (std::int64_t i = 0; i < schedule.steps(); ++i) {
    progress.check();
    const auto start = std::chrono::steady_clock::now();
    const auto step = static_cast<std::size_t>(i);
    const auto [cond, uncond] =
        RefinerRun::guided(text, null_text, latent, [&] { progress.check(); });
    const Tensor v =
        guide_video(cond, uncond, latent, static_cast<double>(schedule.timesteps[step]), guidance, text.pool());
    require_finite(v, "video velocity", i);
    latent = solver.step(v, latent);

    const std::chrono::duration<double> elapsed = std::chrono::steady_clock::now() - start;
    progress.advance(i + 1);
    if (on_step) on_step({i, schedule.timesteps[step], schedule.sigmas[step], elapsed.count()}, latent);
  }
  return latent;
}

}  // namespace magi
