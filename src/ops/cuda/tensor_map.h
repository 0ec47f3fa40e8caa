// SPDX-License-Identifier: Apache-2.0
// Tensor maps for bulk tensor copies (TMA), made on the host and passed to kernels by value.
#pragma once

#include <cuda.h>

#include <cstdint>
#include <span>

namespace magi::cuda {

/// Map of a bf16 matrix [rows, columns] (pitch in elements, a multiple of 8; base 16-byte aligned) in boxes
/// of [box_rows, 64], which arrive in shared memory as 128-byte rows, swizzled by 128 bytes. Elements outside
/// read as zeros. box_rows at most 256. Throws Error.
CUtensorMap bf16_tensor_map(const void* base, std::int64_t rows, std::int64_t columns, std::int64_t pitch,
                            int box_rows);

/// The same of a contiguous bf16 tensor of 2 to 5 axes, sizes and box given innermost first: sizes[0] a
/// multiple of 8, box[0] = 64, the others at most 256.
CUtensorMap bf16_tensor_map(const void* base, std::span<const std::int64_t> sizes, std::span<const int> box);

}  // namespace magi::cuda
