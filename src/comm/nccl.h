// SPDX-License-Identifier: Apache-2.0
// Exchanges between GPUs through NCCL, on a stream beside the one that computes: what is sent waits for the
// work that makes it, what is received is waited for by the work that uses it, the host waits for nothing.
#pragma once

#include <memory>

#include "comm/world.h"

namespace magi {

/// Whether NCCL is in the build.
bool nccl_available();

/// All ranks of `world`, each with its own GPU; `compute_stream` is a cudaStream_t. Throws Error where two
/// ranks have one GPU or NCCL cannot start.
std::shared_ptr<Transport> make_nccl_transport(const World& world, Device device, void* compute_stream);

}  // namespace magi
