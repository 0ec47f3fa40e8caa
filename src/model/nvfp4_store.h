// SPDX-License-Identifier: Apache-2.0
// Checkpoints whose matrices are stored in four bits, read as if they were bf16.
#pragma once

#include <memory>

#include "io/tensor_store.h"

namespace magi {

/// A matrix NAME [columns, depth] in four bits is two tensors (Nvfp4Matrix): NAME.nvfp4, NAME.nvfp4_scale.
inline constexpr const char* kPackedMatrix = ".nvfp4";
inline constexpr const char* kPackedMatrixScale = ".nvfp4_scale";

/// Shows every such pair of `store` as the bf16 matrix NAME, unpacked when it is asked for; all other tensors
/// as they are. A store without any is returned itself.
std::shared_ptr<TensorStore> with_plain_matrices(std::shared_ptr<TensorStore> store);

}  // namespace magi
