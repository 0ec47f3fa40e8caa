// SPDX-License-Identifier: Apache-2.0
// How much memory the stages of a clip take where they compute, told beforehand by a dry run: each stage is
// run once on shapes alone, with a counting arena. No device is needed, no weights are read; a second or less
// for the largest clips.
#pragma once

#include <cstdint>
#include <string_view>
#include <utility>
#include <vector>

#include "run/components.h"
#include "run/engine_options.h"
#include "run/request.h"
#include "run/step_time.h"

namespace magi {

class Tokenizer;

enum class Stage : std::uint8_t { images, text, preview, refiner, audio, video };
/// As in a report: "images", …
std::string_view name_of(Stage stage);
/// The stages that a request has, in their order.
std::vector<Stage> stages_of(const Request& request);

/// What a request's sizes depend on and does not say.
struct StageSizes {
  std::int64_t prompt_rows = 429, negative_rows = 15;  ///< tokens of the texts
  /// Latent cells (h, w) of each reference image; absent: the most that an image can have.
  std::vector<std::pair<std::int64_t, std::int64_t>> images;
};
/// With the texts counted by the root's tokenizer.
StageSizes stage_sizes(const Tokenizer& tokenizer, const Request& request);

struct StageMemory {
  Stage stage = Stage::preview;
  std::size_t weight_bytes = 0;  ///< of the stage's part of the checkpoint, all of it loaded
  std::vector<std::size_t>
      layer_bytes;                ///< of these, each layer's (text encoder, preview and refiner have layers)
  std::size_t input_bytes = 0;    ///< texts, rotary angles and the like
  std::size_t scratch_bytes = 0;  ///< the arena's exact peak: activations, and operations' own scratch
  std::vector<std::int64_t> branch_rows;  ///< the preview's: of each guidance branch
  StepWork work;  ///< of a denoising step; of the whole stage where there are no steps

  std::size_t bytes() const { return weight_bytes + input_bytes + scratch_bytes; }
  /// The same with no more than two layers there at a time.
  std::size_t least_bytes() const;
};

/// The root's config.json counts; of its weights, only the Wan
/// autoencoder's and the small decoders' files are looked at (the shapes they list). Throws Error where those
/// are missing.
StageMemory stage_memory(Stage stage, const CheckpointRoot& root, const Request& request,
                         const StageSizes& sizes, const EngineOptions& options);

/// Throws Error where a stage of the request, with its layers streamed, does not fit into `room` bytes of the
/// device's memory; the message names a size that would.
void require_room(const CheckpointRoot& root, const Request& request, const StageSizes& sizes,
                  const EngineOptions& options, std::size_t room);

/// What a layer of the stage's model takes at most in the checkpoint's files; 0 where there are no layers, or
/// no files.
std::size_t largest_stored_layer(Stage stage, const CheckpointRoot& root);

}  // namespace magi
