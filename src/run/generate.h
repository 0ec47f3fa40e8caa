// SPDX-License-Identifier: Apache-2.0
// From a request to a file: all stages in order, noise from the seed, the clip written beside and renamed.
#pragma once

#include <filesystem>
#include <optional>

#include "core/progress.h"
#include "run/components.h"
#include "run/report.h"
#include "run/request.h"

namespace magi {

struct GenerateOptions {
  DType dtype = DType::bf16;
  std::filesystem::path output;                            ///< the .mp4
  std::optional<std::filesystem::path> latents_directory;  ///< preview and refined latents as safetensors
};

/// Writes the clip and returns what was done. Leaves no partial file when it throws (Error, or Cancelled).
Report generate(const CheckpointRoot& root, const Request& request, const GenerateOptions& options,
                Progress& progress);

}  // namespace magi
