// SPDX-License-Identifier: Apache-2.0
// Tests that every rank runs: mpirun starts test_ranks several times, and each process runs the same tests.
#pragma once

#include "comm/world.h"

namespace magi {

/// All ranks of this test program.
World& world();

}  // namespace magi
