// SPDX-License-Identifier: Apache-2.0
// Memory of GPUs of one NVLink domain into which the kernels of all of them write.
#pragma once

#include <nccl.h>

#include <memory>

#include "comm/group.h"

namespace magi {

/// `bytes` on every rank of the communicator; all its ranks call it together. Null where the GPUs do not
/// reach each other's memory, which is the same on all. Throws Error where the memory is not there.
std::shared_ptr<Window> make_nccl_window(ncclComm_t communicator, int ranks, Device device,
                                         std::size_t bytes);

}  // namespace magi
