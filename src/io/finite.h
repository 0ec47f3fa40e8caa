// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "core/tensor.h"

namespace magi {

/// Index (row-major) of the first NaN or infinity of a contiguous host tensor of floats, −1 when there is
/// none. Runs on all threads at the speed of memory: it reads every weight once at load.
std::int64_t first_non_finite(const Tensor& tensor);

}  // namespace magi
