// SPDX-License-Identifier: Apache-2.0
// Times steps of one model, with random weights or a checkpoint's (docs/performance.md: the first two
// steps dropped, the mean of the rest).
#pragma once

#include <filesystem>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "bench/op_profile.h"
#include "comm/world.h"
#include "core/progress.h"
#include "io/config.h"
#include "model/expert_format.h"
#include "model/parallel.h"

namespace magi {

inline constexpr std::int64_t kDroppedSteps = 2;

/// What a step is: both branches of the preview or the refiner with guidance and solver; a text encoding; a
/// decoding of a whole clip.
enum class BenchModel : std::uint8_t { preview, refiner, text, turbo, audio };
/// "preview", …; throws Error for other names.
BenchModel bench_model(std::string_view name);
std::string_view name_of(BenchModel model);

/// What tells two results apart: "name:hexadecimal digits".
using Digest = std::string (*)(const std::vector<Tensor>& result);
std::string fnv1a(const std::vector<Tensor>& result);

struct BenchOptions {
  BenchModel model = BenchModel::preview;
  Device device;
  DType dtype = DType::bf16;
  ExpertFormat experts = ExpertFormat::stored;  ///< the preview's

  /// The model's part of a checkpoint root, as its loader takes it; without: random weights.
  std::optional<std::filesystem::path> weights;
  std::int64_t distinct = 1;  ///< layers of a kind with weights of their own, when random
  /// Of the GPU's memory: what the preview's layers do not find room in is streamed from the host, each layer
  /// with weights of its own.
  std::optional<std::size_t> vram_bytes;
  std::optional<ConfigNode> config;  ///< of the schema that the model's loader reads; without: the release's

  std::string preset = "272p";                ///< 272p, 540p or 1080p
  std::optional<std::int64_t> width, height;  ///< of the clip, instead of the preset's
  double seconds = 10;
  std::optional<std::int64_t> text_tokens;  ///< without: 2500 for the text encoder, else 429
  std::int64_t steps = 5;
  Digest digest = fnv1a;  ///< of the last step's result; SHA-256 where OpenSSL is at hand

  std::shared_ptr<World>
      world;  ///< of several ranks, all of which run the bench (the preview's alone); else null
  Degrees degrees{0, 0, 0};     ///< 0: chosen
  bool windows = true;          ///< Parallel::set_windows
  int head_groups = 1;          ///< that an attention exchange is cut into
  bool expert_overlap = false;  ///< Parallel::set_expert_overlap
  double alone_seconds = 0;     ///< one rank's step, to compare with; 0: not known

  bool operations = false;                     ///< one more step, with every operation timed
  std::optional<std::filesystem::path> trace;  ///< the same step as a Chrome trace
};

/// The clip that a step works on.
struct ClipSize {
  std::int64_t width = 0, height = 0;
  std::int64_t latents = 0;        ///< T
  std::int64_t audio_latents = 0;  ///< A
};
/// Throws Error for unknown presets and impossible sizes. The refiner, and the turbo decoder at 1080p, work
/// on the refined clip: 2T−1 latents.
ClipSize clip_size(const BenchOptions& options);

/// Layers that came from host memory, over all steps.
struct StreamResult {
  int resident_layers = 0, streamed_layers = 0;
  double gigabytes_a_second = 0;  ///< while a copy ran
  double copy_seconds = 0;        ///< of a step, in which a copy ran
  double stall_seconds = 0;       ///< of a step, in which the computation waited for one
};

struct BenchResult {
  std::vector<double> seconds;  ///< of every step, the dropped ones too
  double mean = 0, median = 0;  ///< of those that count
  std::string digest;           ///< of the last step's result
  double load_seconds = 0;
  std::size_t scratch_bytes = 0;  ///< highest use of the arena
  std::size_t device_bytes = 0;   ///< highest use of the device's memory, context and all; 0 on the CPU
  std::optional<StreamResult> streamed;
  nlohmann::json sizes;  ///< of the problem
  std::optional<Profile> profile;
  Degrees degrees;
  nlohmann::json ranks;  ///< bench/ranks.h; of several ranks, at rank 0, where `seconds` are the slowest's
};

/// A rank's device: the given one at the first rank of a machine, the following ones at the others.
Device device_of_rank(const BenchOptions& options);

/// Throws Error for bad options, unreadable weights and results that are not finite, before any file is
/// written.
BenchResult run_bench(const BenchOptions& options, Progress& progress);

nlohmann::json to_json(const BenchOptions& options, const BenchResult& result);
void write_json(const BenchOptions& options, const BenchResult& result, const std::filesystem::path& file);
/// For people; with the operations' table where there is one.
std::string to_text(const BenchOptions& options, const BenchResult& result);

}  // namespace magi
