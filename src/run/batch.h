// SPDX-License-Identifier: Apache-2.0
// Many clips from one command: a batch file, or variants of one request.
#pragma once

#include <filesystem>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "run/enhance.h"
#include "run/generate.h"

namespace magi {

/// What all clips of a batch share where an entry says nothing else.
struct BatchDefaults {
  nlohmann::json request;        ///< keys of a request
  std::filesystem::path output;  ///< clip.mp4: the one clip, or clip-0.mp4, clip-1.mp4, … of several
  std::optional<std::filesystem::path>
      latents_directory;  ///< of several clips: a directory 0, 1, … each in it
};

/// The tasks of a batch file: a list of objects with the keys of a request, `prompt_file` and `output`; paths
/// are relative to the file. Entry i has seed + i unless it names its own; a `preset` of its own replaces the
/// common sizes. An entry that is wrong becomes a task with an `error`. Throws Error where the file as a
/// whole cannot be used: unreadable, no JSON (the line is named), no list, or two entries with one output.
std::vector<ClipTask> read_batch(const std::filesystem::path& file, const BatchDefaults& common,
                                 const GenerationDefaults& defaults);

/// The same request `count` times, with seed, seed + 1, … A single one has no label. Throws Error when the
/// request is wrong.
std::vector<ClipTask> make_variants(std::int64_t count, const BatchDefaults& common,
                                    const GenerationDefaults& defaults);

/// Enhances the prompts of the tasks that have no error; a task whose prompt cannot be enhanced gets one.
void enhance_tasks(std::vector<ClipTask>& tasks, const EnhanceOptions& options, Progress& progress);

/// A prompt from a file, without the line breaks at its end.
std::string read_prompt_file(const std::filesystem::path& file);

}  // namespace magi
