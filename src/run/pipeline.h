// SPDX-License-Identifier: Apache-2.0
// The stages from a prompt to frames and sound. One part of the checkpoint is in memory at a time: it stays
// for the next clip's same stage and makes way before another is loaded, so that peak memory follows the
// largest stage and a batch that goes stage by stage loads each part once.
#pragma once

#include <exception>
#include <functional>
#include <map>
#include <memory>
#include <string_view>
#include <typeindex>
#include <utility>
#include <vector>

#include "core/progress.h"
#include "model/tokens.h"
#include "model/video_decoder.h"
#include "run/components.h"
#include "run/engine_options.h"
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
  Pipeline(const CheckpointRoot& root, Progress& progress, const EngineOptions& options = {});

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
  /// [A,64] → [samples, 2] at 44.1 kHz.
  Tensor decode_audio(const Tensor& latent);

  /// Highest scratch use since the last call.
  std::size_t take_scratch_peak();

 private:
  /// A type of part, and what it computes in.
  using PartKey = std::pair<std::type_index, DType>;

  /// The part of type T, by `load` unless it is the one in memory; the one before is released first. What
  /// could not be loaded is not tried again.
  template <typename T, typename Load>
  T& part(DType dtype, Load load);
  /// Begins a loading stage; what it returns counts the layers.
  std::function<void(std::int64_t)> count_layers(std::string_view stage, std::int64_t layers);

  const CheckpointRoot& root_;
  Progress& progress_;
  Arena arena_;
  std::unique_ptr<Ops> ops_;
  std::shared_ptr<void> part_;  ///< after ops_: its tensors go first
  PartKey part_key_{typeid(void), DType::f32};
  std::map<PartKey, std::exception_ptr> failed_;
};

}  // namespace magi
