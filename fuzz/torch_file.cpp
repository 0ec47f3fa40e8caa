// SPDX-License-Identifier: Apache-2.0
#include "fuzz.h"
#include "io_targets.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  return magi::fuzz_bytes(data, size, magi::read_torch_file);
}
