// SPDX-License-Identifier: Apache-2.0
// The stages from a prompt to frames and sound. Each stage loads its part of the checkpoint, runs and
// releases it, so that peak memory follows the largest stage. Values pass from stage to stage; no stage keeps
// any.
#pragma once

#include <functional>
#include <vector>

#include "core/progress.h"
#include "model/tokens.h"
#include "model/video_decoder.h"
#include "run/components.h"
#include "run/request.h"
#include "sample/preview_sampler.h"

namespace magi {

/// Text features [L, C], f32 values (rounded to bf16 in a bf16 run).
struct TextFeatures {
  Tensor prompt, negative;
  std::vector<Tensor> figure_tokens;  ///< [C] of <Figure 1>, <Figure 2>, …: one for each image
};

using StepSink = std::function<void(const StepRecord&, const Latents&)>;

class Pipeline {
 public:
  /// `dtype` of text encoder, DiTs and turbo decoder; the audio decoder and the image encoder are always f32.
  Pipeline(const CheckpointRoot& root, DType dtype, Progress& progress);

  TextFeatures encode_text(const Request& request);
  /// Latents [48,1,h,w] of the request's reference images.
  std::vector<Tensor> encode_images(const Request& request);
  /// Noise [48,T,H,W] and [A,64] → clean latents.
  Latents denoise(const Request& request, const TextFeatures& text, const std::vector<Tensor>& image_latents,
                  const Latents& noise, const StepSink& on_step = {});
  /// The preview's latent [48,T,H,W] and noise [48,2T−1,H',W'] → the refined latent.
  Tensor refine(const Request& request, const TextFeatures& text, const Tensor& preview_latent,
                const Tensor& noise, const std::function<void(const StepRecord&)>& on_step = {});
  void decode_video(const Request& request, const Tensor& latent, const FrameSink& sink);
  /// [A,64] → [samples, 2] at sample_rate().
  Tensor decode_audio(const Tensor& latent);

  int sample_rate() const { return sample_rate_; }
  /// Highest scratch use since the last call.
  std::size_t take_scratch_peak();

 private:
  const CheckpointRoot& root_;
  DType dtype_;
  Progress& progress_;
  Arena arena_;
  std::unique_ptr<Ops> ops_;
  int sample_rate_ = 44100;
};

}  // namespace magi
