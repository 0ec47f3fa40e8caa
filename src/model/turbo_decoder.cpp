// SPDX-License-Identifier: Apache-2.0
#include "model/turbo_decoder.h"

#include <algorithm>
#include <cstring>

#include "io/checkpoint.h"
#include "model/latent_stats.h"
#include "model/to_device.h"

namespace magi {
namespace {

constexpr std::int64_t kColours = 3;
constexpr std::int64_t kPatch = 2;
constexpr float kNormEps = 1e-8f;

Tensor norm(Ops& ops, const Tensor& x, float eps, Activation activation) {
  return ops.channel_norm(
      x, {.kind = ChannelNorm::Kind::rms, .eps = eps, .gamma = {}, .activation = activation});
}

}  // namespace

TurboConfig read_turbo_config(const ConfigNode& config) {
  const auto channels = config.integers("decoder_block_out_channels", std::nullopt, 1, 8192);
  const auto layers = config.integers("decoder_layers_per_block", std::nullopt, 0, 1024);
  const auto scaling = config.booleans("decoder_spatio_temporal_scaling", std::nullopt);
  const auto space_only = config.booleans("decoder_spatio_only", std::vector<bool>(channels.size(), false));
  const auto depthwise = config.booleans("decoder_is_dw_conv", std::vector<bool>(channels.size() + 1, false));
  require(!channels.empty() && layers.size() == channels.size() + 1 && scaling.size() == channels.size() &&
              space_only.size() == channels.size() && depthwise.size() == channels.size() + 1,
          "{}: the decoder's lists disagree about the number of blocks",
          config.where("decoder_block_out_channels"));
  require(!config.boolean("decoder_causal", false), "{}: causal turbo decoders are not supported",
          config.where("decoder_causal"));
  require(config.integer("patch_size", kPatch) == kPatch && config.integer("patch_size_t", 1) == 1 &&
              config.boolean("use_unpatchify", false),
          "{}: expected patches of {}x{} pixels undone by use_unpatchify", config.where("patch_size"), kPatch,
          kPatch);
  require(config.integer("latent_channels", kLatentChannels) == kLatentChannels &&
              config.integer("out_channels", kColours) == kColours,
          "{}: expected {} latent channels and {} colours", config.where("latent_channels"), kLatentChannels,
          kColours);

  // The file lists blocks in the encoder's order.
  TurboConfig result;
  result.mid_resnets = layers.back();
  result.mid_depthwise = depthwise.back();
  std::int64_t frames = 1, pixels = kPatch;
  for (std::size_t i = channels.size(); i-- > 0;) {
    const bool time = scaling[i] && !space_only[i];
    result.blocks.push_back({channels[i], layers[i], scaling[i], time, depthwise[i]});
    if (time) frames *= 2;
    if (scaling[i]) pixels *= 2;
  }
  require(frames == kFramesPerLatent && pixels == kPixelsPerLatent,
          "{}: a latent becomes {} frames of {}x{} pixels, expected {} of {}x{}",
          config.where("decoder_spatio_temporal_scaling"), frames, pixels, pixels, kFramesPerLatent,
          kPixelsPerLatent, kPixelsPerLatent);
  result.depthwise_kernel = config.integer("decoder_dw_kernel_size", 3, 1, 99);
  require(result.depthwise_kernel % 2 == 1, "{}: expected an odd size",
          config.where("decoder_dw_kernel_size"));
  result.resnet_norm_eps = static_cast<float>(config.number("resnet_norm_eps", 1e-6, 0, 1));
  result.first_chunk = config.integer("first_chunk_size", 3, 1, 4096);
  result.step = config.integer("step_size", 5, 1, 4096);
  return result;
}

std::vector<TurboWindow> plan_windows(std::int64_t latents, const TurboConfig& config) {
  require(latents > 0, "video decoder: {} latents", latents);
  const std::int64_t first = config.first_chunk, step = config.step, overlap = kFramesPerLatent;
  const std::int64_t more = std::max<std::int64_t>(0, latents - first);
  const std::int64_t padded = first + (more + step - 1) / step * step;
  std::vector<TurboWindow> windows;
  if (padded == first) {
    windows.push_back({0, first, 0, 0, true});
  } else {
    windows.push_back({0, first + 1, 0, overlap, true});
    for (std::int64_t i = first; i < padded; i += step) {
      const bool last = i + step == padded;
      windows.push_back({i - 1, last ? padded : i + step + 1, overlap, last ? 0 : overlap, false});
    }
  }
  windows.back().drop_back += overlap * (padded - latents);
  return windows;
}

Tensor window_input(const Tensor& latent, const TurboWindow& window) {
  const std::int64_t frames = latent.dim(0);
  if (window.end <= frames) return latent.rows(window.first, window.end - window.first);
  Tensor result =
      Tensor::empty(DType::f32, {window.end - window.first, latent.dim(1), latent.dim(2), latent.dim(3)});
  for (std::int64_t t = window.first; t < window.end; ++t)
    std::memcpy(result.rows(t - window.first, 1).raw(), latent.rows(std::min(t, frames - 1), 1).raw(),
                latent.bytes() / static_cast<std::size_t>(frames));
  return result;
}

TurboDecoder TurboDecoder::load(Ops& ops, const std::filesystem::path& directory, DType dtype) {
  std::vector<std::filesystem::path> configs;
  std::error_code failure;
  for (const auto& entry : std::filesystem::directory_iterator(directory, failure))
    if (entry.path().extension() == ".json") configs.push_back(entry.path());
  require(configs.size() == 1, "{}: {} .json files, expected the turbo decoder's configuration",
          directory.string(), configs.size());
  const auto store = open_checkpoint(directory / "checkpoint.ckpt");
  const WeightLoader weights(ops, *store, dtype);
  return TurboDecoder(weights, read_turbo_config(ConfigNode::read(configs.front())));
}

TurboDecoder::TurboDecoder(const WeightLoader& weights, TurboConfig config)
    : config_(std::move(config)), dtype_(weights.dtype()) {
  const WeightLoader w = weights.in("decoder");
  std::int64_t channels = config_.blocks.front().channels;
  conv_in_ = load_conv(w.in("conv_in"), channels, kLatentChannels, 3, false);
  for (std::int64_t i = 0; i < config_.mid_resnets; ++i)
    mid_.push_back(load_resnet(w.in(fmt::format("mid_block.resnets.{}", i)), channels, channels,
                               config_.mid_depthwise, Activation::silu));
  for (std::size_t i = 0; i < config_.blocks.size(); ++i) {
    const TurboConfig::Block& shape = config_.blocks[i];
    const WeightLoader block_weights = w.in(fmt::format("up_blocks.{}", i));
    Block block;
    if (shape.channels != channels)
      block.conv_in = load_resnet(block_weights.in("conv_in"), shape.channels, channels, shape.depthwise,
                                  Activation::silu);
    channels = shape.channels;
    const WeightLoader upsampler = block_weights.in("upsamplers.0");
    if (shape.upsample_time)
      block.time_conv = Conv{{}, upsampler.conv("time_conv.conv", {2 * channels, channels, 3, 1, 1})};
    if (shape.upsample_space)
      block.space_conv = Conv{{}, upsampler.conv("resample.1", {channels, channels, 3, 3})};
    for (std::int64_t k = 0; k < shape.resnets; ++k)
      block.resnets.push_back(load_resnet(block_weights.in(fmt::format("resnets.{}", k)), channels, channels,
                                          shape.depthwise,
                                          shape.upsample_space ? Activation::relu : Activation::silu));
    blocks_.push_back(std::move(block));
  }
  conv_out_ = load_conv(w.in("conv_out"), kColours * kPatch * kPatch, channels, 3, false);
}

TurboDecoder::Conv TurboDecoder::load_conv(const WeightLoader& w, std::int64_t out, std::int64_t in,
                                           std::int64_t kernel, bool depthwise) const {
  if (!depthwise) return {{}, w.conv("conv", {out, in, kernel, kernel, kernel})};
  return {w.depthwise_conv("depthwise_conv", {in, 1, kernel, kernel, kernel}),
          w.conv("pointwise_conv", {out, in, 1, 1, 1})};
}

TurboDecoder::Resnet TurboDecoder::load_resnet(const WeightLoader& w, std::int64_t out, std::int64_t in,
                                               bool depthwise, Activation first) const {
  const std::int64_t kernel = depthwise ? config_.depthwise_kernel : 3;
  Resnet resnet{first,
                load_conv(w.in("conv1"), out, in, kernel, depthwise),
                load_conv(w.in("conv2"), out, out, kernel, depthwise),
                {}};
  if (in != out) resnet.shortcut = load_conv(w.in("conv_shortcut"), out, in, 1, depthwise);
  return resnet;
}

/// Space is padded with zeros, time with copies of the first and last frame.
Tensor TurboDecoder::run(Ops& ops, const Conv& conv, Tensor x) const {
  const ConvWeight& first = conv.depthwise ? *conv.depthwise : conv.dense;
  const auto [kt, kh, kw] = first.kernel;
  if (kt > 1) x = ops.replicate_time(x, (kt - 1) / 2, (kt - 1) / 2);
  ConvOptions options;
  options.pad_front = options.pad_back = {0, kh / 2, kw / 2};
  x = ops.conv(x, first, options);
  return conv.depthwise ? ops.conv(x, conv.dense, {}) : x;
}

Tensor TurboDecoder::run(Ops& ops, const Resnet& resnet, Tensor x) const {
  Tensor h = norm(ops, x, kNormEps, resnet.first_activation);
  h = run(ops, resnet.conv1, std::move(h));
  h = norm(ops, h, kNormEps, Activation::silu);
  h = run(ops, resnet.conv2, std::move(h));
  if (resnet.shortcut) {
    x = norm(ops, x, config_.resnet_norm_eps, Activation::none);
    x = run(ops, *resnet.shortcut, std::move(x));
  }
  ops.add(h, x);
  return h;
}

Tensor TurboDecoder::decode_window(Ops& ops, Tensor x, bool first) const {
  x = run(ops, conv_in_, std::move(x));
  for (const Resnet& resnet : mid_) x = run(ops, resnet, std::move(x));
  for (const Block& block : blocks_) {
    if (block.conv_in) x = run(ops, *block.conv_in, std::move(x));
    if (block.time_conv) {
      x = run(ops, *block.time_conv, std::move(x));
      x = ops.interleave_time(x);
      if (first) x = x.rows(1, x.dim(0) - 1);
    }
    if (block.space_conv) {
      x = ops.upsample_nearest(x);
      x = run(ops, *block.space_conv, std::move(x));
    }
    for (const Resnet& resnet : block.resnets) x = run(ops, resnet, std::move(x));
  }
  x = norm(ops, x, kNormEps, Activation::silu);
  x = run(ops, conv_out_, std::move(x));
  return ops.unpatchify(x, kPatch);
}

void TurboDecoder::decode_chunks(Ops& ops, const Tensor& latent, const ChunkSink& sink) const {
  for (const TurboWindow& window : plan_windows(latent.dim(0), config_)) {
    Tensor x = to_device(ops, window_input(latent, window), dtype_);
    const Tensor frames = decode_window(ops, std::move(x), window.opens_clip);
    sink(frames.rows(window.drop_front, frames.dim(0) - window.drop_front - window.drop_back));
  }
}

}  // namespace magi
