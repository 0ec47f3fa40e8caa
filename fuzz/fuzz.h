// SPDX-License-Identifier: Apache-2.0
// What every target shares: a parser may succeed or throw Error; anything else (another exception, a crash, a
// sanitizer report, a hang) is a finding.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

#include "core/error.h"

namespace magi {

template <typename Parser>
int fuzz_bytes(const std::uint8_t* data, std::size_t size, Parser parser) {
  try {
    parser(std::as_bytes(std::span(data, size)));
  } catch (const Error&) {
  }
  return 0;
}

template <typename Parser>
int fuzz_text(const std::uint8_t* data, std::size_t size, Parser parser) {
  return fuzz_bytes(data, size, [&](std::span<const std::byte> bytes) {
    parser(std::string_view(reinterpret_cast<const char*>(bytes.data()), bytes.size()));
  });
}

}  // namespace magi
