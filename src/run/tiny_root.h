// SPDX-License-Identifier: Apache-2.0
// A complete, tiny checkpoint root with random weights: for trying the program, for tests and demonstrations.
// It is untrained, so its clips show moving colours and noise.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>

namespace magi {

/// Writes every part in the release's layout, and a picture, example.png, to start a clip from. The directory
/// appears complete or not at all; it must not exist, or be empty.
/// `check` is called between files; when it throws, nothing is left.
void write_tiny_root(
    const std::filesystem::path& directory, std::uint64_t seed, const std::function<void()>& check = [] {});

}  // namespace magi
