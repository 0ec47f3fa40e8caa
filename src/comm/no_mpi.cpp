// SPDX-License-Identifier: Apache-2.0
// Builds without MPI.
#include "comm/world.h"

namespace magi {

bool MpiWorld::available() {
  return false;
}
std::pair<int, int> MpiWorld::init() {
  fail("this build has no MPI");
}
std::string MpiWorld::broadcast(std::string) {
  fail("this build has no MPI");
}
std::shared_ptr<Transport> MpiWorld::transport(std::shared_ptr<Monitor>, double) {
  fail("this build has no MPI");
}
void MpiWorld::finalize() {}

}  // namespace magi
