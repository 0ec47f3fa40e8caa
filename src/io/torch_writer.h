// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <filesystem>
#include <string>
#include <utility>
#include <vector>

#include "core/tensor.h"

namespace magi {

/// Writes f32 tensors as PyTorch saves a state dict: a stored zip with `data.pkl` (protocol 2) and one
/// `data/N` a tensor. With `wrapper`, the dict is the value of that key of an outer one. Written beside and
/// renamed.
void write_torch_checkpoint(const std::filesystem::path& path,
                            const std::vector<std::pair<std::string, Tensor>>& tensors,
                            const std::string& wrapper = "");

}  // namespace magi
