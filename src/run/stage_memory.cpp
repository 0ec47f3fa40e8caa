// SPDX-License-Identifier: Apache-2.0
#include "run/stage_memory.h"

#include <algorithm>
#include <array>
#include <map>
#include <numeric>
#include <optional>
#include <tuple>

#include "bench/release_configs.h"
#include "bench/synthetic.h"
#include "bench/zero_store.h"
#include "core/memory_ledger.h"
#include "io/checkpoint.h"
#include "model/audio_decoder.h"
#include "model/latent_stats.h"
#include "model/nvfp4_store.h"
#include "model/turbo_decoder.h"
#include "model/wan_vae.h"
#include "ops/devices.h"
#include "sample/preview_sampler.h"
#include "text/negative_prompt.h"
#include "text/prompt.h"
#include "text/tokenizer.h"

namespace magi {
namespace {

Tensor zeros(Shape shape) {
  return Tensor::zeros(DType::f32, std::move(shape));
}

/// A backend without memory, and what was taken from it.
class DryRun {
 public:
  explicit DryRun(Device device) : arena_(Arena::counting(device)), ops_(make_ops(arena_)), work_(*ops_) {}

  Ops& ops() { return *ops_; }
  SharedLayers layers() { return {1, &layers_}; }
  /// To be called once the weights are there. Layers of a kind share them here, and count each for itself.
  void loaded() {
    loaded_ = ops_->held().bytes;
    result_.weight_bytes =
        std::accumulate(layers_.layers.begin(), layers_.layers.end(), loaded_ - layers_.stored);
    result_.layer_bytes = layers_.layers;
  }
  void branch_rows(const Segments& sequence) {
    for (const RowRange& rows : sample_ranges(sequence)) result_.branch_rows.push_back(rows.size());
  }
  /// The stage does so many times the work that is run here.
  void repeats(double times) { repeats_ = times; }
  StageMemory result(Stage stage) {
    result_.stage = stage;
    result_.input_bytes = ops_->held().peak_bytes - loaded_;
    result_.scratch_bytes = arena_.peak_bytes();
    result_.work = work_.work().times(repeats_);
    return result_;
  }

 private:
  Arena arena_;
  std::unique_ptr<Ops> ops_;
  WorkCounter work_;
  double repeats_ = 1;
  StageMemory result_;
  LayerBytes layers_;
  std::size_t loaded_ = 0;
};

/// Zeros in place of the checkpoint, with what it says of itself where it is there.
ZeroStore zeros_like(const CheckpointRoot& root, const std::filesystem::path& path) {
  const bool there = root.has_files() && std::filesystem::exists(path);
  return there ? ZeroStore(*with_plain_matrices(open_checkpoint(path))) : ZeroStore();
}

/// The longer side of a picture's canvas is the clip's (media/image_resize.h); a square one is the largest.
std::vector<std::pair<std::int64_t, std::int64_t>> image_cells(const Request& request,
                                                               const StageSizes& sizes) {
  auto cells = sizes.images;
  const std::int64_t most = std::max(request.width, request.height) / kPixelsPerLatent;
  cells.resize(request.images.size(), {most, most});
  return cells;
}

void run_images(DryRun& dry, const CheckpointRoot& root, const Request& request, const StageSizes& sizes) {
  const ZeroStore store(*open_checkpoint(root.wan_vae()));
  const WanEncoder encoder(WeightLoader(dry.ops(), store, DType::f32));
  dry.loaded();
  for (const auto& [h, w] : image_cells(request, sizes))
    encoder.encode(dry.ops(), zeros({3, 1, h * kPixelsPerLatent, w * kPixelsPerLatent}));
}

void run_text(DryRun& dry, const CheckpointRoot& root, const Request& request, const StageSizes& sizes) {
  const auto config = TextEncoderConfig::from(
      root.has_files() ? ConfigNode::read(root.text_encoder() / "config.json") : root.config());
  const ZeroStore store = zeros_like(root, root.text_encoder());
  const auto encoder = synthetic_text_encoder(dry.ops(), store, config, request.dtype, dry.layers());
  dry.loaded();
  for (const std::int64_t rows : {sizes.prompt_rows, sizes.negative_rows})
    if (rows > 0) encoder->encode(dry.ops(), std::vector<std::int32_t>(static_cast<std::size_t>(rows)));
}

void run_preview(DryRun& dry, const CheckpointRoot& root, const Request& request, const StageSizes& sizes,
                 ExpertFormat experts) {
  auto config = PreviewConfig::from(root.config());
  config.expert_format = experts;
  const ZeroStore store = zeros_like(root, root.preview());
  const auto model = synthetic_preview(dry.ops(), store, config, request.dtype, dry.layers());
  dry.loaded();
  const LatentGrid grid{request.latent_frames(), request.height / kPixelsPerLatent,
                        request.width / kPixelsPerLatent};
  std::vector<ReferenceImage> images;
  for (const auto& [h, w] : image_cells(request, sizes))
    images.push_back({zeros({config.channels.video, 1, h, w}), zeros({config.channels.text})});
  PackedSequence sequence =
      pack(grid, request.audio_latents(),
           guidance_branches(zeros({sizes.prompt_rows, config.channels.text}),
                             zeros({sizes.negative_rows, config.channels.text}), images, request.guidance));
  dry.branch_rows(sequence.segments);
  PreviewRun run(dry.ops(), *model, std::move(sequence), request.dtype);
  run.velocity(zeros({config.channels.video, grid.t, grid.h, grid.w}),
               zeros({request.audio_latents(), config.channels.audio}), 500);
}

LatentGrid refined_grid(const Request& request) {
  return {2 * request.latent_frames() - 1, request.refine->height / kPixelsPerLatent,
          request.refine->width / kPixelsPerLatent};
}

void run_refiner(DryRun& dry, const CheckpointRoot& root, const Request& request, const StageSizes& sizes) {
  const auto config = RefinerConfig::from(root.config());
  const ZeroStore store = zeros_like(root, root.refiner());
  const auto model = synthetic_refiner(dry.ops(), store, config, request.dtype, dry.layers());
  dry.loaded();
  const LatentGrid grid = refined_grid(request);
  const auto branch = [&](std::int64_t rows) {
    return RefinerRun(dry.ops(), *model, grid, 0, zeros({rows, config.channels.text}), request.dtype);
  };
  RefinerRun cond = branch(sizes.prompt_rows), uncond = branch(sizes.negative_rows);
  const Tensor latent = zeros({config.channels.video, grid.t, grid.h, grid.w});
  for (RefinerRun* run : {&cond, &uncond}) run->velocity(latent);
}

void run_audio(DryRun& dry, const CheckpointRoot& root, const Request& request) {
  const AudioConfig config =
      read_audio_config(root.has_files() ? ConfigNode::read(root.audio_decoder() / "model_config.json")
                                         : ConfigNode(release_audio_config(), "the release's"));
  const ZeroStore store = zeros_like(root, root.audio_decoder());
  const AudioDecoder decoder(WeightLoader(dry.ops(), store, DType::f32, "pretransform.model.decoder."),
                             config);
  dry.loaded();
  decoder.decode(dry.ops(), zeros({request.audio_latents(), config.latent_channels}));
}

/// Windows repeat: a clip longer than a few of them takes no more.
void run_video(DryRun& dry, const CheckpointRoot& root, const Request& request) {
  constexpr std::int64_t kMostLatents = 64;
  LatentGrid grid{request.latent_frames(), request.height / kPixelsPerLatent,
                  request.width / kPixelsPerLatent};
  if (request.refine) grid = refined_grid(request);
  const Tensor latent = zeros({kLatentChannels, std::min(grid.t, kMostLatents), grid.h, grid.w});
  dry.repeats(static_cast<double>(grid.t) / static_cast<double>(latent.dim(1)));
  const auto decode = [&](const VideoDecoder& decoder) {
    dry.loaded();
    decoder.decode(dry.ops(), latent, {});
  };
  if (request.wan_decoder) {
    const ZeroStore store(*open_checkpoint(root.wan_vae()));
    return decode(WanDecoder(WeightLoader(dry.ops(), store, DType::f32)));
  }
  const ZeroStore store = zeros_like(root, root.turbo_decoder_weights());
  decode(TurboDecoder(
      WeightLoader(dry.ops(), store, request.dtype),
      read_turbo_config(root.has_files() ? ConfigNode::read(root.turbo_decoder_config())
                                         : ConfigNode(release_turbo_config(), "the release's"))));
}

std::string size_text(const Request& request) {
  std::string text = fmt::format("{}x{}, {} s", request.width, request.height, request.seconds);
  if (request.refine)
    text += fmt::format(", refined to {}x{}", request.refine->width, request.refine->height);
  return text;
}

/// The first stage that does not fit, if any.
std::optional<StageMemory> first_too_large(const CheckpointRoot& root, const Request& request,
                                           const StageSizes& sizes, const EngineOptions& options,
                                           std::size_t room) {
  for (const Stage stage : stages_of(request)) {
    const StageMemory memory = stage_memory(stage, root, request, sizes, options);
    if (memory.least_bytes() > room) return memory;
  }
  return std::nullopt;
}

struct Alternative {
  std::string name;
  Request request;
};

/// Smaller requests, the largest first.
std::vector<Alternative> alternatives(const Request& request) {
  std::vector<Alternative> list;
  if (request.refine) {
    list.push_back({fmt::format("{}x{} without --refine", request.width, request.height), request});
    list.back().request.refine.reset();
  }
  for (const auto& [name, width, height] :
       {std::tuple{"--preset 540p", 896, 512}, {"--preset 272p", 448, 256}}) {
    if (std::int64_t{width} * height >= request.width * request.height) continue;
    list.push_back({name, request});
    list.back().request.width = width;
    list.back().request.height = height;
    list.back().request.refine.reset();
  }
  return list;
}

constexpr std::array<std::string_view, 6> kNames{"images", "text", "preview", "refiner", "audio", "video"};

}  // namespace

std::string_view name_of(Stage stage) {
  return kNames.at(static_cast<std::size_t>(stage));
}

std::vector<Stage> stages_of(const Request& request) {
  std::vector<Stage> stages{Stage::images,  Stage::text,  Stage::preview,
                            Stage::refiner, Stage::audio, Stage::video};
  std::erase_if(stages, [&](Stage stage) {
    return (stage == Stage::images && request.images.empty()) ||
           (stage == Stage::refiner && !request.refine) || (stage == Stage::audio && !request.audio);
  });
  return stages;
}

std::size_t StageMemory::least_bytes() const {
  if (layer_bytes.size() <= 2) return bytes();
  const std::size_t all = std::accumulate(layer_bytes.begin(), layer_bytes.end(), std::size_t{0});
  return bytes() - all + 2 * *std::max_element(layer_bytes.begin(), layer_bytes.end());
}

StageSizes stage_sizes(const Tokenizer& tokenizer, const Request& request) {
  const auto rows = [&](const std::string& text) {
    return static_cast<std::int64_t>(tokenizer.encode(text).ids.size());
  };
  StageSizes sizes;
  sizes.prompt_rows = rows(prepare_prompt(request.prompt, !request.images.empty()));
  sizes.negative_rows = rows(request.negative_prompt.value_or(std::string(default_negative_prompt())));
  return sizes;
}

StageMemory stage_memory(Stage stage, const CheckpointRoot& root, const Request& request,
                         const StageSizes& sizes, const EngineOptions& options) {
  require(root.has_files() || (stage != Stage::images && !(stage == Stage::video && request.wan_decoder)),
          "{}: the Wan autoencoder's sizes are in its file; give -m ROOT", name_of(stage));
  DryRun dry(options.device);
  switch (stage) {
    case Stage::images:
      run_images(dry, root, request, sizes);
      break;
    case Stage::text:
      run_text(dry, root, request, sizes);
      break;
    case Stage::preview:
      run_preview(dry, root, request, sizes, options.experts);
      break;
    case Stage::refiner:
      run_refiner(dry, root, request, sizes);
      break;
    case Stage::audio:
      run_audio(dry, root, request);
      break;
    case Stage::video:
      run_video(dry, root, request);
      break;
  }
  return dry.result(stage);
}

void require_room(const CheckpointRoot& root, const Request& request, const StageSizes& sizes,
                  const EngineOptions& options, std::size_t room) {
  const std::optional<StageMemory> lacking = first_too_large(root, request, sizes, options, room);
  if (!lacking) return;
  std::string advice = "no smaller size would fit";
  for (const Alternative& smaller : alternatives(request))
    if (!first_too_large(root, smaller.request, sizes, options, room)) {
      advice = smaller.name + " would fit";
      break;
    }
  fail("{}: the {} stage of {} needs {}, {} of them to compute in, {} are free: {}",
       to_string(options.device), name_of(lacking->stage), size_text(request),
       memory_text(lacking->least_bytes()), memory_text(lacking->input_bytes + lacking->scratch_bytes),
       memory_text(room), advice);
}

std::size_t largest_stored_layer(Stage stage, const CheckpointRoot& root) {
  const bool layered = stage == Stage::text || stage == Stage::preview || stage == Stage::refiner;
  if (!layered || !root.has_files()) return 0;
  const auto store = open_checkpoint(stage == Stage::text      ? root.text_encoder()
                                     : stage == Stage::preview ? root.preview()
                                                               : root.refiner());
  std::map<std::string, std::size_t> layers;  // by the name up to the number behind "layers."
  for (const auto& [name, info] : store->entries()) {
    const std::size_t number = name.find("layers.");
    if (number == name.npos) continue;
    layers[name.substr(0, name.find('.', number + 7))] += info.bytes;
  }
  std::size_t largest = 0;
  for (const auto& [name, bytes] : layers) largest = std::max(largest, bytes);
  return largest;
}

}  // namespace magi
