// SPDX-License-Identifier: Apache-2.0
// The stages from a prompt to frames and sound. A loaded part of the checkpoint stays for the next clip's
// same stage; whether it makes way for another part is the PartCache's business.
#pragma once

#include <functional>
#include <memory>
#include <string_view>
#include <vector>

#include "core/progress.h"
#include "io/checkpoint.h"
#include "model/preview.h"
#include "model/tokens.h"
#include "model/turbo_decoder.h"
#include "run/components.h"
#include "run/engine_options.h"
#include "run/memory_plan.h"
#include "run/part_cache.h"
#include "run/report.h"
#include "run/request.h"
#include "run/stage_memory.h"
#include "run/team.h"
#include "sample/preview_sampler.h"

namespace magi {

/// Text features [L, C], f32 values (rounded to bf16 in a bf16 run).
struct TextFeatures {
  Tensor prompt, negative;
  std::vector<Tensor> figure_tokens;  ///< [C] of <Figure 1>, <Figure 2>, …: one for each image
};

using StepSink = std::function<void(const StepRecord&, const SampleState&)>;

class Pipeline {
 public:
  /// `parts`: shared with other pipelines; by default its own, one part at a time.
  Pipeline(const CheckpointRoot& root, Progress& progress, const EngineOptions& options = {},
           std::shared_ptr<PartCache> parts = nullptr);
  ~Pipeline();

  /// Whom the stages that follow tell of their progress, and who may stop them.
  void report_to(Progress& progress) { progress_ = &progress; }

  TextFeatures encode_text(const Request& request);
  bool has_text_encoder(DType dtype) const;  ///< loaded already
  /// Latents [48,1,h,w] of the request's reference images.
  std::vector<Tensor> encode_images(const Request& request);
  /// From noise [48,T,H,W] and [A,64], or from where an earlier run was left, to clean latents.
  Latents denoise(const Request& request, const TextFeatures& text, const std::vector<Tensor>& image_latents,
                  const SampleState& start, const StepSink& on_step = {});
  /// One frame u8 [H,W,3] of what a running denoise() predicts, for people to look at: a latent from the
  /// middle of x₀ [48,T,H,W], through the turbo decoder. May be called from on_step.
  Tensor preview_frame(const Request& request, const Tensor& x0);
  /// The preview's latent [48,T,H,W] and noise [48,2T−1,H',W'] → the refined latent.
  Tensor refine(const Request& request, const TextFeatures& text, const Tensor& preview_latent,
                const Tensor& noise, const std::function<void(const StepRecord&)>& on_step = {});
  /// Over ranks, as denoise() and refine(), by all of them; the first one's `sink` gets the frames.
  void decode_video(const Request& request, const Tensor& latent, const FrameSink& sink);
  /// [A,64] → [samples, 2] at 44.1 kHz.
  Tensor decode_audio(const Tensor& latent);

  /// Throws Error, naming what would fit, where a stage of the request does not fit into the GPU's memory. On
  /// the CPU everything fits: memory that lacks is found on the disk. Over ranks by all of them, each with
  /// its own GPU: where one lacks memory, all throw.
  void require_room(const Request& request);
  const Team& team() const { return team_; }
  /// What this rank has exchanged and held so far.
  RankRecord rank_record() const;

  /// Highest scratch use since the last call.
  std::size_t take_scratch_peak();
  /// Most that was held of the GPU's memory since the last call: weights, slots, scratch; 0 on the host.
  std::size_t take_device_peak();

 private:
  static constexpr std::size_t kLeastScratch = std::size_t{1} << 20;
  /// How a part is loaded.
  struct Loading {
    Placement placement;
    Access access = Access::mapped;
  };
  /// Of a part that is about to be loaded: where its layers go beside the stage's scratch memory, by a dry
  /// run; all stay where there is plenty. Throws Error where the stage does not fit.
  Loading place(Stage stage, const Request& request, const StageSizes& sizes,
                const std::filesystem::path& weights);
  /// Lets go of the part of type T where it was placed for a smaller clip, and leaves too little for this
  /// one.
  template <typename T>
  void make_way(Stage stage, const Request& request, const StageSizes& sizes);
  bool has_budgets() const;
  MemoryLimits room() const;  ///< what may still be taken
  /// Begins a loading stage; what it returns counts the layers.
  std::function<void(std::int64_t)> count_layers(std::string_view stage, std::int64_t layers);

  std::shared_ptr<TurboDecoder> turbo_decoder(DType dtype);
  /// What this rank will take; of the ranks that joined.
  StageMemory memory_of(Stage stage, const Request& request, const StageSizes& sizes) const;
  /// On a GPU, makes the arena as large as a dry run of the stage says.
  void use_scratch(Stage stage, const Request& request, const StageSizes& sizes);
  void set_scratch(std::size_t bytes);
  /// Lengths of the texts, which rank 0 alone can read.
  StageSizes text_sizes(const Request& request);

  /// By all ranks where work begins that they share: connects them where they compute and chooses their
  /// shares, once; gives back the windows of the work before.
  void join_ranks();
  void choose_shares();

  const CheckpointRoot& root_;
  Progress* progress_;
  EngineOptions options_;
  Team team_;
  MemoryLimits limits_;
  Arena arena_;
  std::unique_ptr<Ops> ops_;
  Parallel parallel_;
  DryRank dry_rank_;  ///< this rank in dry runs
  RankRecord record_;
  std::shared_ptr<PartCache> parts_;      ///< after ops_: the tensors go first
  std::shared_ptr<Tokenizer> tokenizer_;  ///< of text_sizes()
};

}  // namespace magi
