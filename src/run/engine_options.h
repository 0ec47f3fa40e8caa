// SPDX-License-Identifier: Apache-2.0
// What holds for every clip that an engine makes: where it computes and what it may use. What a single clip
// asks for is a Request.
#pragma once

#include <cstddef>
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
  /// What this process may hold of the GPU's and of the host's memory (--vram, --ram); absent: what is free.
  /// Layers that do not fit are streamed from host memory, or read from disk as they are needed.
  std::optional<std::size_t> vram_bytes = {}, ram_bytes = {};
  /// Loaded parts of the checkpoint stay as long as memory holds them, for an engine that makes clip after
  /// clip. Else one at a time: peak memory follows the largest.
  bool keep_parts = false;
  /// A denoising step of the first clip as a Chrome trace, each operation with its time.
  std::optional<std::filesystem::path> trace = {};
  std::shared_ptr<World> world = {};  ///< of several ranks, which make each clip together; null: alone
  Degrees degrees{0, 0, 0};           ///< how they share the preview; 0: chosen
};

}  // namespace magi
