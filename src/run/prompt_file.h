// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <filesystem>
#include <string>

namespace magi {

/// A prompt from a file, without the line breaks at its end.
std::string read_prompt_file(const std::filesystem::path& file);

}  // namespace magi
