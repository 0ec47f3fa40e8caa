// SPDX-License-Identifier: Apache-2.0
#include "fuzz.h"
#include "text_targets.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  return magi::fuzz_text(data, size, magi::prepare_any_prompt);
}
