// SPDX-License-Identifier: Apache-2.0
// PyTorch checkpoints (`.pth`, `.pt`, `.ckpt`): a zip archive of one restricted pickle and one record per
// storage.
#pragma once

#include <cstddef>
#include <filesystem>
#include <memory>
#include <span>
#include <string>

#include "io/tensor_store.h"

namespace magi {

/// The tensors of the state dict: that under `ema_state_dict`, else `state_dict`, else the root dict itself;
/// other values are left out, a prefix `module.` is taken off the names. Contiguous tensors are views of the
/// mapped file, others are gathered when loaded. Nothing in the file is executed (see io/pickle.h).
std::shared_ptr<TensorStore> open_torch(const std::filesystem::path& file);

/// The same over a whole file in memory, kept alive by `owner`; `where` names it in errors.
std::shared_ptr<TensorStore> torch_store(std::span<const std::byte> file, std::shared_ptr<const void> owner,
                                         const std::string& where);

}  // namespace magi
