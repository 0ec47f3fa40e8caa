// SPDX-License-Identifier: Apache-2.0
#include "sample/preview_sampler.h"

#include <chrono>

#include "io/finite.h"

namespace magi {
namespace {

Tensor zeros_like(const Tensor& t) {
  return Tensor::zeros(t.dtype(), t.shape());
}

}  // namespace

void require_finite(const Tensor& values, std::string_view what, std::int64_t step) {
  require(first_non_finite(values) < 0,
          "step {}: the {} is not finite; the weights or the precision do not fit this input", step, what);
}

std::vector<Conditioning> guidance_branches(const Tensor& text, const Tensor& negative_text,
                                            const std::vector<ReferenceImage>& images,
                                            const GuidanceOptions& guidance) {
  Conditioning cond{text, images};
  Conditioning uncond{guidance.negative_prompt ? negative_text : text.rows(0, 0), images};
  if (!guidance.reference_in_uncond)
    for (ReferenceImage& image : uncond.images) image.latent = zeros_like(image.latent);
  return {std::move(cond), std::move(uncond)};
}

Latents sample_preview(PreviewRun& run, SampleState start, const Schedule& schedule,
                       const GuidanceOptions& guidance, Progress& progress,
                       const std::function<void(const StepRecord&, const SampleState&)>& on_step) {
  require(start.video.step == start.audio.step, "the video is at step {} and the audio at {}",
          start.video.step, start.audio.step);
  Latents latents = std::move(start.latents);
  UniPC video(schedule, std::move(start.video), run.pool()), audio(schedule, std::move(start.audio));
  for (std::int64_t i = video.state().step; i < schedule.steps(); ++i) {
    progress.check();
    const auto start = std::chrono::steady_clock::now();
    const auto timestep = static_cast<double>(schedule.timesteps[static_cast<std::size_t>(i)]);
    const std::vector<Velocity> v = run.velocity(latents.video, latents.audio, timestep);
    require(v.size() == 2, "guidance needs two branches, not {}", v.size());

    const Tensor v_video = guide_video(v[0].video, v[1].video, latents.video, timestep, guidance, run.pool());
    const Tensor v_audio = guide_audio(v[0].audio, v[1].audio, latents.audio, guidance);
    require_finite(v_video, "video velocity", i);
    require_finite(v_audio, "audio velocity", i);
    latents = {video.step(v_video, latents.video), audio.step(v_audio, latents.audio)};

    const std::chrono::duration<double> elapsed = std::chrono::steady_clock::now() - start;
    progress.advance(i + 1);
    if (on_step)
      on_step({i, schedule.timesteps[static_cast<std::size_t>(i)],
               schedule.sigmas[static_cast<std::size_t>(i)], elapsed.count()},
              {latents, video.state(), audio.state()});
  }
  return latents;
}

}  // namespace magi
