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
/// The stages of a request that rank `rank` takes part in, in their order: texts, pictures, sound and the Wan
/// autoencoder are rank 0's alone.
std::vector<Stage> stages_of(const Request& request, int rank = 0);

/// Throws Error where the root has no files for one of them.
void require_parts(const CheckpointRoot& root, const Request& request);

/// What a request's sizes depend on and does not say.
struct StageSizes {
  std::int64_t prompt_rows = 429, negative_rows = 15;  ///< tokens of the texts
  /// Latent cells (h, w) of each reference image; absent: the most that an image can have.
  std::vector<std::pair<std::int64_t, std::int64_t>> images;
};
/// With the texts counted by the root's tokenizer.
StageSizes stage_sizes(const Tokenizer& tokenizer, const Request& request);

/// The rank whose share of the work a dry run does.
struct DryRank {
  int rank = 0;
  Degrees degrees;      ///< of sp·cfg ranks
  bool windows = true;  ///< whether these write to each other's memory (Transport::open_window)
};

struct StageMemory {
  Stage stage = Stage::preview;
  std::size_t weight_bytes = 0;  ///< of the stage's part of the checkpoint, all that the rank loads of it
  std::vector<std::size_t>
      layer_bytes;                ///< of these, each layer's (text encoder, preview and refiner have layers)
  std::size_t input_bytes = 0;    ///< texts, rotary angles and the like
  std::size_t window_bytes = 0;   ///< of this rank, that others write into
  std::size_t scratch_bytes = 0;  ///< the arena's exact peak: activations, and operations' own scratch
  std::vector<std::int64_t> branch_rows;  ///< the preview's: of each guidance branch
  StepWork work;  ///< of a denoising step; of the whole stage where there are no steps

  std::size_t bytes() const { return weight_bytes + computing_bytes(); }
  /// All but weights.
  std::size_t computing_bytes() const { return input_bytes + window_bytes + scratch_bytes; }
  /// The same with no more than two layers there at a time.
  std::size_t least_bytes() const;
};

/// The root's config.json counts; of its weights, only the Wan
/// autoencoder's and the small decoders' files are looked at (the shapes they list). Throws Error where those
/// are missing.
StageMemory stage_memory(Stage stage, const CheckpointRoot& root, const Request& request,
                         const StageSizes& sizes, const EngineOptions& options, const DryRank& rank = {});

/// Throws Error where a stage of the request, with its layers streamed, does not fit into `room` bytes of the
/// device's memory; the message names a size that would. Over ranks by all of them, each with its own room:
/// where one lacks some, all throw.
void require_room(const CheckpointRoot& root, const Request& request, const StageSizes& sizes,
                  const EngineOptions& options, std::size_t room, const DryRank& rank = {});

/// What a layer of the stage's model takes at most in the checkpoint's files; 0 where there are no layers, or
/// no files.
std::size_t largest_stored_layer(Stage stage, const CheckpointRoot& root);

}  // namespace magi
