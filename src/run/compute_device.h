// SPDX-License-Identifier: Apache-2.0
// Where a command computes.
#pragma once

#include "core/arena.h"

namespace magi {

/// The first CUDA device, else the CPU.
Device default_device();

/// Scratch memory: of a GPU, `gpu_bytes`; of the host, address space for any stage.
Arena scratch_arena(Device device, std::size_t gpu_bytes);

}  // namespace magi
