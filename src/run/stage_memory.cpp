// SPDX-License-Identifier: Apache-2.0
#include "run/stage_memory.h"

#include <algorithm>
#include <array>
#include <map>
#include <numeric>
#include <tuple>

#include "bench/release_configs.h"
#include "bench/synthetic.h"
#include "bench/zero_store.h"
#include "comm/dry_transport.h"
#include "core/memory_ledger.h"
#include "io/checkpoint.h"
#include "model/audio_decoder.h"
#include "model/latent_stats.h"
#include "model/nvfp4_store.h"
#include "model/turbo_decoder.h"
#include "model/wan_vae.h"
#include "ops/devices.h"
#include "run/team.h"
#include "sample/preview_sampler.h"
#include "text/negative_prompt.h"
#include "text/prompt.h"
#include "text/tokenizer.h"

namespace magi {
namespace {

Tensor zeros(Shape shape) {
  return Tensor::zeros(DType::f32, std::move(shape));
}

/// A backend without memory and ranks that are not there, and what was taken from them.
class DryRun {
 public:
  DryRun(Device device, const DryRank& rank)
      : arena_(Arena::counting(device)),
        ops_(make_ops(arena_)),
        work_(*ops_),
        ranks_(std::make_shared<DryTransport>(rank.rank, rank.degrees.sp * rank.degrees.cfg, device)),
        parallel_(Group(ranks_, "all ranks"), rank.degrees) {
    parallel_.set_windows(rank.windows);
  }

  Ops& ops() { return *ops_; }
  const Parallel& parallel() const { return parallel_; }
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
    result_.window_bytes = ranks_->window_bytes();
    result_.scratch_bytes = arena_.peak_bytes();
    result_.work = work_.work().times(repeats_);
    return result_;
  }

 private:
  Arena arena_;
  std::unique_ptr<Ops> ops_;
  WorkCounter work_;
  std::shared_ptr<DryTransport> ranks_;
  Parallel parallel_;
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
  const auto model = synthetic_preview(dry.ops(), store, config, request.dtype, dry.layers(), dry.parallel());
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
    return RefinerRun(dry.ops(), *model, grid, 0, zeros({rows, config.channels.text}), request.dtype,
                      dry.parallel());
  };
  RefinerRun cond = branch(sizes.prompt_rows), uncond = branch(sizes.negative_rows);
  RefinerRun::guided(cond, uncond, zeros({config.channels.video, grid.t, grid.h, grid.w}));
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

/// The decoder's windows of time repeat: a clip longer than a few of them takes no more. Over ranks their
/// number says how the picture is cut.
void run_video(DryRun& dry, const CheckpointRoot& root, const Request& request) {
  constexpr std::int64_t kMostLatents = 64;
  LatentGrid grid{request.latent_frames(), request.height / kPixelsPerLatent,
                  request.width / kPixelsPerLatent};
  if (request.refine) grid = refined_grid(request);
  const std::int64_t latents = dry.parallel().alone() ? std::min(grid.t, kMostLatents) : grid.t;
  const Tensor latent = zeros({kLatentChannels, latents, grid.h, grid.w});
  dry.repeats(static_cast<double>(grid.t) / static_cast<double>(latent.dim(1)));
  const auto decode = [&](const VideoDecoder& decoder) {
    dry.loaded();
    decoder.decode(dry.ops(), latent, {}, request.wan_decoder ? Group() : dry.parallel().all());
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

/// What the first stage that does not fit on this rank lacks; empty where all do.
std::string lack_of_room(const CheckpointRoot& root, const Request& request, const StageSizes& sizes,
                         const EngineOptions& options, std::size_t room, const DryRank& rank) {
  for (const Stage stage : stages_of(request, rank.rank)) {
    const StageMemory memory = stage_memory(stage, root, request, sizes, options, rank);
    if (memory.least_bytes() <= room) continue;
    return fmt::format("{}: the {} stage of {} needs {}, {} of them to compute in, {} are free",
                       to_string(options.device), name_of(stage), size_text(request),
                       memory_text(memory.least_bytes()), memory_text(memory.computing_bytes()),
                       memory_text(room));
  }
  return "";
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

std::vector<Stage> stages_of(const Request& request, int rank) {
  std::vector<Stage> stages{Stage::images,  Stage::text,  Stage::preview,
                            Stage::refiner, Stage::audio, Stage::video};
  std::erase_if(stages, [&](Stage stage) {
    return (stage == Stage::images && request.images.empty()) ||
           (stage == Stage::refiner && !request.refine) || (stage == Stage::audio && !request.audio) ||
           (rank > 0 && (stage == Stage::images || stage == Stage::text || stage == Stage::audio ||
                         (stage == Stage::video && request.wan_decoder)));
  });
  return stages;
}

void require_parts(const CheckpointRoot& root, const Request& request) {
  const auto path_of = [&](Stage stage) {
    switch (stage) {
      case Stage::images:
        return root.wan_vae();
      case Stage::text:
        return root.text_encoder();
      case Stage::preview:
        return root.preview();
      case Stage::refiner:
        return root.refiner();
      case Stage::audio:
        return root.audio_decoder();
      case Stage::video:
        break;
    }
    return request.wan_decoder ? root.wan_vae() : root.turbo_decoder_weights();
  };
  for (const Stage stage : stages_of(request))
    require(
        std::filesystem::exists(path_of(stage)),
        "{}: no such file or directory, which the {} stage needs; \"magi2 inspect {}\" lists what is missing",
        path_of(stage).string(), name_of(stage), root.path().string());
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
                         const StageSizes& sizes, const EngineOptions& options, const DryRank& rank) {
  require(root.has_files() || (stage != Stage::images && !(stage == Stage::video && request.wan_decoder)),
          "{}: the Wan autoencoder's sizes are in its file; give -m ROOT", name_of(stage));
  DryRun dry(options.device, rank);
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
                  const EngineOptions& options, std::size_t room, const DryRank& rank) {
  const Team team(options.world);
  const auto lack_of = [&](const Request& wanted) {
    return team.first_text(
        team.everywhere([&] { return lack_of_room(root, wanted, sizes, options, room, rank); }));
  };
  const std::string lack = lack_of(request);
  if (lack.empty()) return;
  for (const Alternative& smaller : alternatives(request))
    if (lack_of(smaller.request).empty()) fail("{}: {} would fit", lack, smaller.name);
  fail("{}: no smaller size would fit", lack);
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
