// SPDX-License-Identifier: Apache-2.0
#include "bench/workload.h"

#include <chrono>

#include "bench/random_store.h"
#include "bench/release_configs.h"
#include "bench/synthetic.h"
#include "bench/zero_store.h"
#include "core/memory_ledger.h"
#include "io/checkpoint.h"
#include "model/audio_decoder.h"
#include "model/nvfp4_store.h"
#include "model/turbo_decoder.h"
#include "ops/devices.h"
#include "sample/noise.h"
#include "sample/preview_sampler.h"
#include "sample/refiner_sampler.h"

namespace magi {
namespace {

constexpr std::uint64_t kSeed = 42;
constexpr double kPreviewShift = 7, kRefinerShift = 5;
constexpr std::int64_t kPromptTokens = 429, kNegativeTokens = 15, kEncodedTokens = 2500;

std::int64_t text_tokens(const BenchOptions& o) {
  return o.text_tokens.value_or(o.model == BenchModel::text ? kEncodedTokens : kPromptTokens);
}

nlohmann::json clip_json(const ClipSize& clip) {
  return {{"width", clip.width}, {"height", clip.height}, {"latents", clip.latents}};
}

nlohmann::json rows_json(std::initializer_list<const PackedSequence*> sequences) {
  nlohmann::json rows = nlohmann::json::array();
  for (const PackedSequence* sequence : sequences)
    for (const RowRange& range : sample_ranges(sequence->segments)) rows.push_back(range.size());
  return rows;
}

ConfigNode config_or_release(const BenchOptions& o, const nlohmann::json& release) {
  return o.config ? *o.config : ConfigNode(release, "the release's configuration");
}

/// A step of a model without a sampler is a call.
template <typename Step>
auto repeat(Step step) {
  return [step = std::move(step)](std::int64_t steps, const Workload::OnStep& on_step) {
    std::vector<Tensor> result;
    for (std::int64_t i = 0; i < steps; ++i) {
      const auto start = std::chrono::steady_clock::now();
      result = {step()};
      on_step(std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count());
    }
    return result;
  };
}

/// Four-bit experts are drawn as such: quantising numbers would take minutes.
void add_packed_experts(RandomStore& store, const PreviewConfig& config) {
  for (const std::int64_t i : config.moe_layers)
    store.add_nvfp4(fmt::format("block.layers.{}.mlp.moe_mlp.{}", i, kPackedExperts), config.moe_heads,
                    {config.experts, config.moe_width / config.moe_heads, config.expert_hidden});
}

/// Where the layers go within the budget, by a dry run of a step.
void place_preview(Workload& w, const BenchOptions& o, const PreviewConfig& config, Device device) {
  const ClipSize clip = clip_size(o);
  Arena arena = Arena::counting(device);
  const auto ops = make_ops(arena);
  const ZeroStore zeros;
  LayerBytes bytes;
  const auto model = synthetic_preview(*ops, zeros, config, o.dtype, {1, &bytes});
  const std::size_t others = ops->held().bytes - bytes.stored;
  const LatentGrid grid{clip.latents, clip.height / 16, clip.width / 16};
  const Tensor text = Tensor::zeros(DType::f32, {text_tokens(o), config.channels.text});
  const Tensor negative = text.rows(0, std::min(text.dim(0), kNegativeTokens));
  PreviewRun run(*ops, *model, pack(grid, clip.audio_latents, guidance_branches(text, negative, {}, {})),
                 o.dtype);
  run.velocity(Tensor::zeros(DType::f32, {config.channels.video, grid.t, grid.h, grid.w}),
               Tensor::zeros(DType::f32, {clip.audio_latents, config.channels.audio}), 500);
  const std::size_t inputs = ops->held().peak_bytes - ops->held().bytes + (std::size_t{64} << 20);
  w.scratch_bytes = arena.peak_bytes();
  const std::size_t taken = kDeviceOverhead + others + inputs + *w.scratch_bytes;
  require(taken < *o.vram_bytes, "bench: {} are needed beside the layers, --vram allows {}",
          memory_text(taken), memory_text(*o.vram_bytes));
  w.placement = place_layers("preview", bytes.layers, {*o.vram_bytes - taken});
}

Workload preview_workload(Ops& ops, const BenchOptions& o, const Parallel& parallel, Progress& progress) {
  auto config = PreviewConfig::from(config_or_release(o, nlohmann::json::object()));
  config.expert_format = o.experts;
  const ClipSize clip = clip_size(o);
  Workload w;
  if (o.vram_bytes && !o.weights) place_preview(w, o, config, ops.device());
  RandomStore random;
  if (o.experts == ExpertFormat::nvfp4) add_packed_experts(random, config);
  std::shared_ptr<const Preview> model =
      o.weights
          ? load_preview(ops, *open_checkpoint(*o.weights), config, o.dtype, {}, parallel)
          : synthetic_preview(ops, random, config, o.dtype, {o.distinct, nullptr, w.placement}, parallel);
  if (w.placement.streams()) w.take_transfer_times = [model] { return model->take_transfer_times(); };
  const LatentGrid grid{clip.latents, clip.height / 16, clip.width / 16};
  NoiseGenerator noise(kSeed);
  const Latents start{noise.randn({config.channels.video, grid.t, grid.h, grid.w}),
                      noise.randn({clip.audio_latents, config.channels.audio})};
  const Tensor text = noise.randn({text_tokens(o), config.channels.text});
  const Tensor negative = text.rows(0, std::min(text.dim(0), kNegativeTokens));
  auto run = std::make_shared<PreviewRun>(
      ops, *model, pack(grid, clip.audio_latents, guidance_branches(text, negative, {}, {})), o.dtype);

  w.sizes = clip_json(clip);
  w.sizes["audio_latents"] = clip.audio_latents;
  w.sizes["rows"] = rows_json({&run->sequence()});
  w.share = {parallel.rows(run->sequence().segments), parallel.expert_heads(config.moe_heads)};
  w.run = [model, run, start, &progress](std::int64_t steps, const Workload::OnStep& on_step) {
    const Latents end =
        sample_preview(*run, {start}, make_schedule(steps, kPreviewShift), {}, progress,
                       [&](const StepRecord& step, const SampleState&) { on_step(step.seconds); });
    return std::vector<Tensor>{end.video, end.audio};
  };
  return w;
}

Workload refiner_workload(Ops& ops, const BenchOptions& o, const Parallel& parallel, Progress& progress) {
  const auto config = RefinerConfig::from(config_or_release(o, nlohmann::json::object()));
  std::shared_ptr<const Refiner> model =
      o.weights ? load_refiner(ops, *open_checkpoint(*o.weights), config, o.dtype)
                : synthetic_refiner(ops, RandomStore(), config, o.dtype, {o.distinct});
  const ClipSize clip = clip_size(o);
  const LatentGrid grid{clip.latents, clip.height / 16, clip.width / 16};
  NoiseGenerator noise(kSeed);
  const Tensor start = noise.randn({config.channels.video, grid.t, grid.h, grid.w});
  const Tensor text = noise.randn({text_tokens(o), config.channels.text});
  const auto branch = [&](std::int64_t rows) {
    return std::make_shared<RefinerRun>(ops, *model, grid, 0, text.rows(0, rows), o.dtype, parallel);
  };
  const auto cond = branch(text.dim(0)), uncond = branch(std::min(text.dim(0), kNegativeTokens));

  Workload w;
  w.sizes = clip_json(clip);
  w.sizes["rows"] = rows_json({&cond->sequence(), &uncond->sequence()});
  w.share = {cond->rows(), {}};
  w.run = [model, cond, uncond, start, &progress](std::int64_t steps, const Workload::OnStep& on_step) {
    return std::vector<Tensor>{
        sample_refiner(*cond, *uncond, start, make_schedule(steps, kRefinerShift), {}, progress,
                       [&](const StepRecord& step, const Tensor&) { on_step(step.seconds); })};
  };
  return w;
}

Workload text_workload(Ops& ops, const BenchOptions& o) {
  const auto config = TextEncoderConfig::from(config_or_release(o, nlohmann::json::object()));
  std::shared_ptr<const TextEncoder> model =
      o.weights ? load_text_encoder(ops, *with_plain_matrices(open_checkpoint(*o.weights)), config, o.dtype)
                : synthetic_text_encoder(ops, RandomStore(), config, o.dtype, {o.distinct});
  std::vector<std::int32_t> ids;
  for (std::int64_t i = 0; i < text_tokens(o); ++i)
    ids.push_back(static_cast<std::int32_t>(i * 7919 % config.vocabulary));
  return {{{"rows", {ids.size()}}}, repeat([model, ids, &ops] { return model->encode(ops, ids); })};
}

Workload turbo_workload(Ops& ops, const BenchOptions& o) {
  const RandomStore random;
  const WeightLoader weights(ops, random, o.dtype);
  const auto model = std::make_shared<const TurboDecoder>(
      o.weights ? TurboDecoder::load(ops, *o.weights, o.dtype)
                : TurboDecoder(weights, read_turbo_config(config_or_release(o, release_turbo_config()))));
  const ClipSize clip = clip_size(o);
  const Tensor latent = NoiseGenerator(kSeed).randn({48, clip.latents, clip.height / 16, clip.width / 16});
  // Keeping the last window's frames costs nothing; the whole clip would be timed with its copies.
  return {clip_json(clip), repeat([model, latent, &ops] {
            Tensor last;
            model->decode(ops, latent, [&](const Tensor& frames) { last = frames; });
            return last;
          })};
}

Workload audio_workload(Ops& ops, const BenchOptions& o) {
  const RandomStore random;
  const WeightLoader weights(ops, random, DType::f32);
  const auto model = std::make_shared<const AudioDecoder>(
      o.weights ? AudioDecoder::load(ops, *o.weights)
                : AudioDecoder(weights, read_audio_config(config_or_release(o, release_audio_config()))));
  const std::int64_t rows = clip_size(o).audio_latents;
  const Tensor latent = NoiseGenerator(kSeed).randn({rows, model->config().latent_channels});
  return {{{"audio_latents", rows}}, repeat([model, latent, &ops] { return model->decode(ops, latent); })};
}

}  // namespace

Workload make_workload(Ops& ops, const BenchOptions& options, const Parallel& parallel, Progress& progress) {
  switch (options.model) {
    case BenchModel::preview:
      return preview_workload(ops, options, parallel, progress);
    case BenchModel::refiner:
      return refiner_workload(ops, options, parallel, progress);
    case BenchModel::text:
      return text_workload(ops, options);
    case BenchModel::turbo:
      return turbo_workload(ops, options);
    case BenchModel::audio:
      return audio_workload(ops, options);
  }
  fail("unknown model");
}

}  // namespace magi
