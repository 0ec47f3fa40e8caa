// SPDX-License-Identifier: Apache-2.0
// What holds for every clip that an engine makes: where it computes and what it may use. What a single clip
// asks for is a Request.
#pragma once

#include <filesystem>
#include <memory>
#include <optional>

#include "comm/world.h"
#include "core/tensor.h"
#include "model/expert_format.h"
#include "model/parallel.h"

namespace magi {

struct EngineOptions {
  Device device;
  ExpertFormat experts = ExpertFormat::stored;
  /// Loaded parts of the checkpoint stay as long as memory holds them, for an engine that makes clip after
  /// clip. Else one at a time: peak memory follows the largest.
  bool keep_parts = false;
  /// A denoising step of the first clip as a Chrome trace, each operation with its time.
  std::optional<std::filesystem::path> trace = {};
  std::shared_ptr<World> world;  ///< of several ranks, which make each clip together; null: alone
  Degrees degrees{0, 0, 0};      ///< how they share the preview; 0: chosen
};

}  // namespace magi
