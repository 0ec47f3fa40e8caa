// SPDX-License-Identifier: Apache-2.0
// One door to every checkpoint: a directory of safetensors shards, one safetensors file, or a PyTorch file.
#pragma once

#include <filesystem>
#include <memory>

#include "io/safetensors.h"
#include "io/tensor_store.h"

namespace magi {

/// Opens
/// - a directory with an index (`model.safetensors.index.json`, or the only other `*.safetensors.index.json`)
/// whose
///   `weight_map` names a shard for each tensor; every shard must be there and hold what the index says;
/// - a directory with `model.safetensors`, or with one other `*.safetensors`;
/// - a single `.safetensors`;
/// - a PyTorch zip file `.pth`, `.pt` or `.ckpt` (see io/torch_pickle.h).
/// Throws Error that says what was looked for, or which shards are missing.
/// `access`: of safetensors; PyTorch files are always mapped.
std::shared_ptr<TensorStore> open_checkpoint(const std::filesystem::path& path,
                                             Access access = Access::mapped);

}  // namespace magi
