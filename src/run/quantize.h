// SPDX-License-Identifier: Apache-2.0
// From a released root to a native one (docs/format.md): file by file, piece by piece, in little memory.
#pragma once

#include <filesystem>

#include "core/progress.h"
#include "run/quantize_plan.h"

namespace magi {

/// Writes the native root of `root` to `out`, a directory that is new, empty, or left unfinished by the same
/// call before: what is finished there is kept, and the result has the same bytes as an uninterrupted run's.
/// Every file is read back and compared before it counts. Progress is in megabytes read; lines tell each
/// layer's error. Throws Error for everything that plan_quantize does, for other directories, a lack of room,
/// another process at work on `out`, weights that are not finite, and files that read back differently.
void quantize(const CheckpointRoot& root, const std::filesystem::path& out, const QuantizeFormat& format,
              Progress& progress);

}  // namespace magi
