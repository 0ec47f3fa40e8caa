// SPDX-License-Identifier: Apache-2.0
// From requests to files: all stages in order, noise from the seed, each clip written beside and renamed.
#pragma once

#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "core/progress.h"
#include "run/components.h"
#include "run/engine_options.h"
#include "run/report.h"
#include "run/request.h"

namespace magi {

class Pipeline;
struct TextFeatures;

/// What a clip's owner sees of it while it is made, on the thread that makes it.
class ClipWatcher {
 public:
  virtual ~ClipWatcher() = default;
  /// Whether to decode a frame of what the latents predict after this step, which costs some time.
  virtual bool wants_frame(const StepRecord& /*step*/) { return false; }
  virtual void frame(const StepRecord& /*step*/, const Tensor& /*rgb, u8 [H,W,3]*/) {}
};

/// Where the denoising is kept, so that a run that was killed goes on instead of starting again.
struct Resume {
  std::filesystem::path file;
  std::int64_t every = 5;  ///< steps
};

/// One clip to make.
struct ClipTask {
  Request request;
  std::filesystem::path output;                            ///< the .mp4
  std::optional<std::filesystem::path> latents_directory;  ///< preview and refined latents as safetensors
  std::string label;  ///< of a batch's entry: a failure is logged under it, at once
  std::string error;  ///< what is known to be wrong already; empty: nothing
  std::optional<std::filesystem::path> thumbnail = {};  ///< a JPEG of the middle frame
  std::optional<std::filesystem::path> sound = {};      ///< the sound as WAV
  std::optional<Resume> resume = {};                    ///< also saved when cancelled
  std::shared_ptr<const TextFeatures> text = {};        ///< encoded already
  ClipWatcher* watcher = nullptr;
};

/// Makes the clips stage by stage (all texts, then all previews, …), so that each part of the checkpoint is
/// loaded once and peak memory follows the largest stage. Report i tells of task i; one that failed has its
/// `error` set, and the others are made all the same. Throws Cancelled alone. No partial file is left. Over
/// ranks, rank 0 calls this, once; the others follow().
std::vector<Report> generate(const CheckpointRoot& root, std::vector<ClipTask> tasks, Progress& progress,
                             const EngineOptions& options = {});

/// The same with a pipeline of `root` that outlives the clips, as often as wanted. Over ranks, dismiss()
/// ends it.
std::vector<Report> generate(const CheckpointRoot& root, Pipeline& pipeline, std::vector<ClipTask> tasks,
                             Progress& progress);

/// What the other ranks do while rank 0 calls generate(): their part in each of its calls, until dismiss().
/// Throws RankLost when the run ends otherwise. `before_each`: called before each of them.
void follow(const CheckpointRoot& root, Pipeline& pipeline, const std::function<void()>& before_each = {});
void follow(const CheckpointRoot& root, const EngineOptions& options);
/// Rank 0 has no more to make. Before its pipeline ends: GPUs part together.
void dismiss(const Pipeline& pipeline);

}  // namespace magi
