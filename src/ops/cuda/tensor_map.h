// SPDX-License-Identifier: Apache-2.0
// Tensor maps for bulk tensor copies (TMA), made on the host and passed to kernels by value.
#pragma once

#include <cuda.h>

#include <cstdint>

namespace magi::cuda {

/// Map of a bf16 matrix [rows, columns] (pitch in elements, a multiple of 8; base 16-byte aligned) in boxes
/// of [box_rows, 64], which arrive in shared memory as 128-byte rows, swizzled by 128 bytes. Elements outside
/// read as zeros. box_rows at most 256. Throws Error.
CUtensorMap bf16_tensor_map(const void* base, std::int64_t rows, std::int64_t columns, std::int64_t pitch,
                            int box_rows);

}  // namespace magi::cuda
