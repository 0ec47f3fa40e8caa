// SPDX-License-Identifier: Apache-2.0
// From requests to files: all stages in order, noise from the seed, each clip written beside and renamed.
#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "core/progress.h"
#include "run/components.h"
#include "run/engine_options.h"
#include "run/report.h"
#include "run/request.h"

namespace magi {

/// One clip to make.
struct ClipTask {
  Request request;
  std::filesystem::path output;                            ///< the .mp4
  std::optional<std::filesystem::path> latents_directory;  ///< preview and refined latents as safetensors
  std::string label;  ///< of a batch's entry: a failure is logged under it, at once
  std::string error;  ///< what is known to be wrong already; empty: nothing
};

/// Makes the clips stage by stage (all texts, then all previews, …), so that each part of the checkpoint is
/// loaded once and peak memory follows the largest stage. Report i tells of task i; one that failed has its
/// `error` set, and the others are made all the same. Throws Cancelled alone. No partial file is left.
std::vector<Report> generate(const CheckpointRoot& root, std::vector<ClipTask> tasks, Progress& progress,
                             const EngineOptions& options = {});

}  // namespace magi
