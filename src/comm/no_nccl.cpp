// SPDX-License-Identifier: Apache-2.0
// Builds without NCCL.
#include "comm/nccl.h"

namespace magi {

bool nccl_available() {
  return false;
}
std::shared_ptr<Transport> make_nccl_transport(const World&, Device, void*) {
  fail("this build has no NCCL, without which GPUs cannot work together; configure with -DMAGI2_NCCL=ON");
}

}  // namespace magi
