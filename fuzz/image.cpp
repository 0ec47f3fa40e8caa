// SPDX-License-Identifier: Apache-2.0
#include "fuzz.h"
#include "media/image_reader.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  return magi::fuzz_bytes(data, size, [](std::span<const std::byte> bytes) {
    magi::ImageOptions options;
    options.max_pixels = 1 << 20;  // larger ones only slow the search down
    magi::read_image({reinterpret_cast<const std::uint8_t*>(bytes.data()), bytes.size()}, "fuzz", options);
  });
}
