// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <filesystem>
#include <string>

namespace magi {

/// All bytes of a file or a pipe. Throws Error `FILE: cannot be read: …` when it is none, and when it holds
/// more than `max_bytes`.
std::string read_file(const std::filesystem::path& file, std::size_t max_bytes);

}  // namespace magi
