// SPDX-License-Identifier: Apache-2.0
// Where a command computes.
#pragma once

#include "core/arena.h"

namespace magi {

/// The first CUDA device, else the CPU.
Device default_device();

/// Scratch memory for any stage. On a GPU a third of what is free: the rest is for a stage's weights.
Arena scratch_arena(Device device);

}  // namespace magi
