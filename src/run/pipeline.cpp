// SPDX-License-Identifier: Apache-2.0
#include "run/pipeline.h"

#include <algorithm>
#include <map>
#include <optional>
#include <utility>

#include "bench/op_profile.h"
#include "core/log.h"
#include "core/memory_ledger.h"
#include "io/checkpoint.h"
#include "media/image_reader.h"
#include "media/image_resize.h"
#include "media/resample.h"
#include "model/audio_decoder.h"
#include "model/latent_stats.h"
#include "model/nvfp4_store.h"
#include "model/refiner.h"
#include "model/text_encoder.h"
#include "model/turbo_decoder.h"
#include "model/wan_vae.h"
#include "ops/devices.h"
#include "run/compute_device.h"
#include "sample/refine.h"
#include "sample/refiner_sampler.h"
#include "text/negative_prompt.h"
#include "text/prompt.h"
#include "text/tokenizer.h"

namespace magi {
namespace {

constexpr std::size_t kKeptFeatures = 64;  // some 20 MB each

/// The released pipeline hands bf16 features and images to its models.
Tensor rounded_to(DType dtype, const Tensor& values) {
  return dtype == DType::bf16 ? values.to(DType::bf16).to(DType::f32) : values;
}

Tokens tokenize(const Tokenizer& tokenizer, const std::string& text, const char* which) {
  Tokens tokens = tokenizer.encode(text);
  if (tokens.truncated)
    log_warning("the {} has more than {} tokens; the rest is not used", which, Tokenizer::kMaxTokens);
  return tokens;
}

void report_unused(const TensorStore& store) {
  std::vector<std::string> names = store.unused({"pre_adapter.rope"});
  // The raw bias is what training adjusts; the model routes by its average.
  std::erase_if(names, [](const std::string& name) { return name.ends_with(".router.expert_bias"); });
  if (!names.empty())
    log_info("{}: {} unknown tensors ignored, {} the first", store.where(), names.size(), names.front());
}

/// u8 [H,W,3] → [3,1,H,W] in [−1,1].
Tensor image_as_video(const Tensor& image, DType dtype) {
  const std::int64_t pixels = image.dim(0) * image.dim(1);
  Tensor video = Tensor::empty(DType::f32, {3, 1, image.dim(0), image.dim(1)});
  for (std::int64_t c = 0; c < 3; ++c)
    for (std::int64_t i = 0; i < pixels; ++i)
      video.data<float>()[c * pixels + i] =
          2.0f * (static_cast<float>(image.data<std::uint8_t>()[3 * i + c]) / 255.0f) - 1.0f;
  return rounded_to(dtype, video);
}

struct TextPart {
  std::shared_ptr<const Tokenizer> tokenizer;
  std::shared_ptr<TensorStore> store;
  std::unique_ptr<TextEncoder> encoder;
  std::map<std::string, Tensor> features;  ///< clips of a batch share texts, the negative prompt above all
};

struct PreviewPart {
  std::shared_ptr<TensorStore> store;
  std::unique_ptr<Preview> model;
};

struct RefinerPart {
  std::shared_ptr<TensorStore> store;
  std::unique_ptr<Refiner> model;
};

/// Looks on at one step of a run, the third where there are so many (the first ones load kernels), and writes
/// its trace.
class StepTrace {
 public:
  StepTrace(Ops& ops, std::filesystem::path file, std::int64_t first, std::int64_t steps)
      : ops_(ops), file_(std::move(file)), step_(std::min(first + kWarmSteps, steps - 1)) {
    before(first);
  }
  void after(std::int64_t step) {
    if (profiler_) write_trace(profiler_->finish(), fmt::format("denoising step {}", step), file_);
    profiler_.reset();
    before(step + 1);
  }

 private:
  static constexpr std::int64_t kWarmSteps = 2;
  void before(std::int64_t step) {
    if (step == step_) profiler_.emplace(ops_);
  }

  Ops& ops_;
  std::filesystem::path file_;
  std::int64_t step_;
  std::optional<OpProfiler> profiler_;
};

}  // namespace

Pipeline::Pipeline(const CheckpointRoot& root, Progress& progress, const EngineOptions& options,
                   std::shared_ptr<PartCache> parts)
    : root_(root),
      progress_(&progress),
      options_(options),
      team_(options.world),
      limits_(memory_limits(options)),
      arena_(scratch_arena(options.device, kLeastScratch)),
      ops_(make_ops(arena_)),
      parts_(parts ? std::move(parts) : std::make_shared<PartCache>(options.device, false)) {
  enforce(limits_, options.device);
}

Pipeline::~Pipeline() {
  limits_.host = limits_.device = MemoryLedger::kNoLimit;
  enforce(limits_, options_.device);
}

template <typename T>
void Pipeline::make_way(Stage stage, const Request& request, const StageSizes& sizes) {
  const bool on_gpu = options_.device.kind == Device::Kind::cuda;
  if (!parts_->has<T>(request.dtype) || (!on_gpu && !has_budgets())) return;
  const StageMemory memory = memory_of(stage, request, sizes);
  const std::size_t bytes = memory.scratch_bytes + memory.window_bytes;
  if (bytes > (on_gpu ? room().device + arena_.capacity_bytes() : room().host))
    parts_->drop<T>(request.dtype);
}

std::function<void(std::int64_t)> Pipeline::count_layers(std::string_view stage, std::int64_t layers) {
  progress_->stage(stage, layers);
  return [this](std::int64_t layer) {
    progress_->check();
    progress_->advance(layer);
  };
}

TextFeatures Pipeline::encode_text(const Request& request) {
  const std::filesystem::path path = root_.text_encoder();
  const auto known = parts_->known<TextPart>(request.dtype);
  const auto tokenizer =
      known ? known->tokenizer : std::make_shared<const Tokenizer>(Tokenizer::load(path / "tokenizer.json"));
  const std::string text = prepare_prompt(request.prompt, !request.images.empty());
  const Tokens prompt = tokenize(*tokenizer, text, "prompt");
  const std::string negative_text = request.negative_prompt.value_or(std::string(default_negative_prompt()));
  const Tokens negative = tokenize(*tokenizer, negative_text, "negative prompt");

  const StageSizes sizes{std::ssize(prompt.ids), std::ssize(negative.ids), {}};
  make_way<TextPart>(Stage::text, request, sizes);
  const auto part = parts_->get<TextPart>(request.dtype, path, [&]() -> TextPart {
    const auto config = TextEncoderConfig::from(ConfigNode::read(path / "config.json"));
    const Loading how = place(Stage::text, request, sizes, path);
    auto store = with_plain_matrices(open_checkpoint(path, how.access));
    auto encoder = load_text_encoder(*ops_, *store, config, request.dtype,
                                     count_layers("load text encoder", config.run_layers()), how.placement);
    return {tokenizer, std::move(store), std::move(encoder), {}};
  });
  use_scratch(Stage::text, request, sizes);
  if (part->features.size() >= kKeptFeatures) part->features.clear();
  const auto encode = [&](const std::string& key, const Tokens& tokens) {
    progress_->check();
    const auto [known, added] = part->features.try_emplace(key);
    if (added) known->second = rounded_to(request.dtype, part->encoder->encode(*ops_, tokens.ids));
    return known->second;
  };
  progress_->stage("encode text", 2);
  TextFeatures features;
  features.prompt = encode(text, prompt);
  progress_->advance(1);
  features.negative = negative.ids.empty() ? features.prompt.rows(0, 0) : encode(negative_text, negative);
  progress_->advance(2);
  for (const ImageInput& image : request.images) {
    const auto span = figure_span(text, image.figure);
    const std::vector<std::int64_t> tokens = span ? tokens_in(prompt, *span) : std::vector<std::int64_t>{};
    if (tokens.empty()) log_warning("the prompt never names <Figure {}>", image.figure);
    features.figure_tokens.push_back(rounded_to(request.dtype, figure_token(features.prompt, tokens)));
  }
  return features;
}

bool Pipeline::has_text_encoder(DType dtype) const {
  return parts_->has<TextPart>(dtype);
}

std::vector<Tensor> Pipeline::encode_images(const Request& request) {
  std::vector<Tensor> latents;
  if (request.images.empty()) return latents;
  ImageOptions options;
  options.warn = [](std::string_view line) { log_warning("{}", line); };
  std::vector<Tensor> videos;
  for (const ImageInput& image : request.images)
    videos.push_back(image_as_video(
        prepare_reference_image(read_image(image.path, options), request.width, request.height),
        request.dtype));
  const auto encoder = parts_->get<WanEncoder>(DType::f32, root_.wan_vae(),
                                               [&] { return WanEncoder::load(*ops_, root_.wan_vae()); });
  StageSizes sizes;
  for (const Tensor& video : videos)
    sizes.images.emplace_back(video.dim(-2) / kPixelsPerLatent, video.dim(-1) / kPixelsPerLatent);
  use_scratch(Stage::images, request, sizes);
  progress_->stage("encode images", static_cast<std::int64_t>(videos.size()));
  for (const Tensor& video : videos) {
    progress_->check();
    latents.push_back(encoder->encode(*ops_, video));
    progress_->advance(static_cast<std::int64_t>(latents.size()));
  }
  return latents;
}

Latents Pipeline::denoise(const Request& request, const TextFeatures& text,
                          const std::vector<Tensor>& image_latents, const SampleState& start,
                          const StepSink& on_step) {
  StageSizes sizes{text.prompt.dim(0), text.negative.dim(0), {}};
  for (const Tensor& latent : image_latents) sizes.images.emplace_back(latent.dim(-2), latent.dim(-1));
  join_ranks();
  make_way<PreviewPart>(Stage::preview, request, sizes);
  const auto load = [&]() -> PreviewPart {
    auto config = PreviewConfig::from(root_.config());
    config.expert_format = options_.experts;
    const Loading how = place(Stage::preview, request, sizes, root_.preview());
    auto store = open_checkpoint(root_.preview(), how.access);
    auto model = load_preview(*ops_, *store, config, request.dtype,
                              count_layers("load preview", config.layers), parallel_, how.placement);
    if (how.placement.count(Place::disk) == 0) report_unused(*store);
    return {std::move(store), std::move(model)};
  };
  const auto part =
      team_.everywhere([&] { return parts_->get<PreviewPart>(request.dtype, root_.preview(), load); });

  std::vector<ReferenceImage> images;
  for (std::size_t i = 0; i < image_latents.size(); ++i)
    images.push_back({image_latents[i], text.figure_tokens.at(i)});
  use_scratch(Stage::preview, request, sizes);
  const Tensor& video = start.latents.video;
  const LatentGrid grid{video.dim(-3), video.dim(-2), video.dim(-1)};
  PreviewRun run(*ops_, *part->model,
                 pack(grid, start.latents.audio.dim(-2),
                      guidance_branches(text.prompt, text.negative, images, request.guidance)),
                 request.dtype);
  const Parallel& parallel = part->model->parallel();
  record_.tokens_share = static_cast<double>(parallel.rows(run.sequence().segments).size()) /
                         static_cast<double>(run.sequence().rows());
  progress_->stage("denoise", request.steps);
  progress_->advance(start.step());
  std::optional<StepTrace> trace;
  if (options_.trace) trace.emplace(*ops_, *std::exchange(options_.trace, {}), start.step(), request.steps);
  return sample_preview(run, start, make_schedule(request.steps, root_.defaults().shift), request.guidance,
                        *progress_, [&](const StepRecord& step, const SampleState& state) {
                          // The first rank does some of this alone; the others wait here.
                          team_.everywhere([&] {
                            if (trace) trace->after(step.step);
                            if (on_step) on_step(step, state);
                            return true;
                          });
                        });
}

Tensor Pipeline::refine(const Request& request, const TextFeatures& text, const Tensor& preview_latent,
                        const Tensor& noise, const std::function<void(const StepRecord&)>& on_step) {
  const StageSizes sizes{text.prompt.dim(0), text.negative.dim(0), {}};
  join_ranks();
  make_way<RefinerPart>(Stage::refiner, request, sizes);
  const auto load = [&]() -> RefinerPart {
    const auto config = RefinerConfig::from(root_.config());
    const Loading how = place(Stage::refiner, request, sizes, root_.refiner());
    auto store = open_checkpoint(root_.refiner(), how.access);
    auto model = load_refiner(*ops_, *store, config, request.dtype,
                              count_layers("load refiner", config.layers), how.placement);
    if (how.placement.count(Place::disk) == 0) report_unused(*store);
    return {std::move(store), std::move(model)};
  };
  const auto part =
      team_.everywhere([&] { return parts_->get<RefinerPart>(request.dtype, root_.refiner(), load); });

  use_scratch(Stage::refiner, request, sizes);
  const GenerationDefaults& defaults = root_.defaults();
  const LatentGrid grid{noise.dim(-3), noise.dim(-2), noise.dim(-1)};
  Tensor latent = upsample_latent(preview_latent, grid.h, grid.w);
  if (defaults.refiner_noise != 0)
    latent = renoise(latent, noise.reshape(latent.shape()), defaults.refiner_noise);
  RefinerRun cond(*ops_, *part->model, grid, 0, text.prompt, request.dtype, parallel_);
  RefinerRun uncond(*ops_, *part->model, grid, 0, text.negative, request.dtype, parallel_);
  record_.refiner_tokens_share = RefinerRun::rows_share(cond, uncond);
  progress_->stage("refine", request.refiner_steps);
  return sample_refiner(cond, uncond, latent, make_schedule(request.refiner_steps, defaults.refiner_shift),
                        defaults.refiner_guidance, *progress_, [&](const StepRecord& step, const Tensor&) {
                          team_.everywhere([&] {
                            if (on_step) on_step(step);
                            return true;
                          });
                        });
}

void Pipeline::decode_video(const Request& request, const Tensor& latent, const FrameSink& sink) {
  progress_->stage("decode video", 4 * (latent.dim(-3) - 1) + 1);
  std::int64_t done = 0;
  const auto counted = [&](const Tensor& frames) {
    progress_->check();
    sink(frames);
    progress_->advance(done += frames.dim(0));
  };
  join_ranks();
  if (request.wan_decoder && !team_.first()) return;  // it cannot be shared: rank 0 decodes alone
  std::shared_ptr<const VideoDecoder> decoder;
  if (request.wan_decoder) {
    decoder = parts_->get<WanDecoder>(DType::f32, root_.wan_vae(),
                                      [&] { return WanDecoder::load(*ops_, root_.wan_vae()); });
  } else {
    decoder = team_.everywhere([&] { return turbo_decoder(request.dtype); });
  }
  use_scratch(Stage::video, request, {});
  decoder->decode(*ops_, latent, counted, request.wan_decoder ? Group() : parallel_.all());
}

std::shared_ptr<TurboDecoder> Pipeline::turbo_decoder(DType dtype) {
  const std::filesystem::path directory = root_.turbo_decoder_weights().parent_path();
  return parts_->get<TurboDecoder>(dtype, directory,
                                   [&] { return TurboDecoder::load(*ops_, directory, dtype); });
}

Tensor Pipeline::preview_frame(const Request& request, const Tensor& x0) {
  const std::int64_t channels = x0.dim(0), middle = x0.dim(1) / 2, cells = x0.dim(2) * x0.dim(3);
  Tensor latent = Tensor::empty(DType::f32, {channels, 1, x0.dim(2), x0.dim(3)});
  for (std::int64_t c = 0; c < channels; ++c)
    std::copy_n(x0.data<float>() + (c * x0.dim(1) + middle) * cells, cells, latent.data<float>() + c * cells);
  Request one = request;
  one.seconds = 0.04;
  one.refine.reset();
  one.wan_decoder = false;
  const auto decoder = turbo_decoder(request.dtype);
  const std::size_t before =
      arena_.capacity_bytes();  // of the run that goes on; between steps it uses none of it
  set_scratch(stage_memory(Stage::video, root_, one, {}, options_).scratch_bytes);
  Tensor frame;
  decoder->decode(*ops_, latent, [&](const Tensor& frames) {
    frame = frames.reshape({frames.dim(1), frames.dim(2), 3}).clone();
  });
  set_scratch(before);
  return frame;
}

Tensor Pipeline::decode_audio(const Tensor& latent) {
  progress_->stage("decode audio", 1);
  const auto decoder = parts_->get<AudioDecoder>(
      DType::f32, root_.audio_decoder(), [&] { return AudioDecoder::load(*ops_, root_.audio_decoder()); });
  Request sound;  // as long as the latent, whatever the request was
  sound.seconds = static_cast<double>(latent.dim(-2)) / 25;
  use_scratch(Stage::audio, sound, {});
  const Tensor waveform = decoder->decode(*ops_, latent);
  progress_->advance(1);
  return resample(waveform, resampled_length(waveform.dim(1)));
}

}  // namespace magi
