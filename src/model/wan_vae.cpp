// SPDX-License-Identifier: Apache-2.0
#include "model/wan_vae.h"

#include <algorithm>

#include "io/checkpoint.h"
#include "model/latent_stats.h"
#include "model/to_device.h"
#include "model/tokens.h"

namespace magi {
namespace {

constexpr std::int64_t kPatch = 2;
constexpr std::int64_t kPatchChannels = 3 * kPatch * kPatch;

void check_scale(const WeightLoader& w, std::int64_t time, std::int64_t space) {
  require(time == kFramesPerLatent && space == kPixelsPerLatent,
          "{}: the video autoencoder has {} frames of {}x{} pixels a latent, expected {} of {}x{}", w.where(),
          time, space, space, kFramesPerLatent, kPixelsPerLatent, kPixelsPerLatent);
}

/// The encoder's shortcut as a strided convolution: an output channel is the mean of a run of (channel,
/// frame, row, column), row-major.
ConvWeight averaging(Ops& ops, std::int64_t in, std::int64_t out, std::int64_t time, std::int64_t space) {
  const std::int64_t block = time * space * space;
  require(in * block % out == 0, "video autoencoder: {} channels cannot be averaged to {}", in * block, out);
  const std::int64_t run = in * block / out;
  Tensor weight = Tensor::zeros(DType::f32, {out, in, time, space, space});
  for (std::int64_t i = 0; i < in * block; ++i)
    weight.data<float>()[i / run * in * block + i] = 1.0f / static_cast<float>(run);
  return ops.pack_conv(weight, {}, false, false, DType::f32);
}

/// The decoder's shortcut as a 1×1 convolution that picks one input channel for each (channel, frame, row,
/// column) of the larger output, in the order in which interleave_time (where time is doubled) and unpatchify
/// take them.
ConvWeight duplication(Ops& ops, std::int64_t in, std::int64_t out, std::int64_t time) {
  const std::int64_t space = 2, block = time * space * space;
  require(out * block % in == 0, "video autoencoder: {} channels cannot be duplicated to {}", in,
          out * block);
  const std::int64_t repeats = out * block / in;
  Tensor weight = Tensor::zeros(DType::f32, {out * block, in, 1, 1, 1});
  for (std::int64_t c = 0; c < out; ++c)
    for (std::int64_t t = 0; t < time; ++t)
      for (std::int64_t row = 0; row < space; ++row)
        for (std::int64_t column = 0; column < space; ++column) {
          const std::int64_t source = (((c * time + t) * space + row) * space + column) / repeats;
          const std::int64_t place = t * out * space * space + (c * space + column) * space + row;
          weight.data<float>()[place * in + source] = 1;
        }
  return ops.pack_conv(weight, {}, false, false, DType::f32);
}

}  // namespace

WanEncoder WanEncoder::load(Ops& ops, const std::filesystem::path& file) {
  const auto store = open_checkpoint(file);
  return WanEncoder(WeightLoader(ops, *store, DType::f32));
}

WanEncoder::WanEncoder(const WeightLoader& weights) {
  Ops& ops = weights.ops();
  const WeightLoader w = weights.in("encoder");
  std::int64_t channels = wan::channels_of(w, "conv1.weight");
  conv_in_ = w.conv("conv1", {channels, kPatchChannels, 3, 3, 3});
  std::int64_t total_time = 1, total_space = kPatch;
  for (std::size_t i = 0; w.has(fmt::format("downsamples.{}.downsamples.0.residual.2.weight", i)); ++i) {
    const WeightLoader stage_weights = w.in(fmt::format("downsamples.{}.downsamples", i));
    const std::int64_t in = channels;
    Stage stage;
    stage.blocks = wan::load_residuals(stage_weights, channels);
    const WeightLoader down = stage_weights.in(std::to_string(stage.blocks.size()));
    if (down.has("resample.1.weight")) {
      stage.down = Downsampler{down.conv("resample.1", {channels, channels, 3, 3}), {}};
      if (down.has("time_conv.weight"))
        stage.down->time = down.conv("time_conv", {channels, channels, 3, 1, 1});
    }
    const std::int64_t time = stage.down && stage.down->time ? 2 : 1, space = stage.down ? 2 : 1;
    stage.average = averaging(ops, in, channels, time, space);
    total_time *= time;
    total_space *= space;
    stages_.push_back(std::move(stage));
  }
  check_scale(weights, total_time, total_space);
  middle_ = wan::load_middle(w.in("middle"), channels);
  head_ = wan::load_head(w.in("head"), channels, 2 * kLatentChannels);
  moments_ = weights.conv("conv1", {2 * kLatentChannels, 2 * kLatentChannels, 1, 1, 1});
}

Tensor WanEncoder::run(Ops& ops, const Stage& stage, wan::History& history, Tensor x) const {
  Tensor h = x;
  for (const auto& block : stage.blocks) h = wan::run(ops, block, history, std::move(h));
  ConvOptions shortcut;
  if (stage.down) {
    ConvOptions halve;
    halve.stride = {1, 2, 2};
    halve.pad_back = {0, 1, 1};
    h = ops.conv(h, stage.down->space, halve);
    if (stage.down->time) h = history.halve_time(ops, std::move(h), *stage.down->time);
  }
  shortcut.stride = stage.average.kernel;
  shortcut.pad_front[0] = x.dim(0) % shortcut.stride[0];
  ops.add(h, ops.conv(x, stage.average, shortcut));
  return h;
}

Tensor WanEncoder::encode_chunk(Ops& ops, wan::History& history, Tensor x) const {
  x = ops.patchify(x, kPatch);
  x = history.causal_conv(ops, std::move(x), conv_in_);
  for (const Stage& stage : stages_) x = run(ops, stage, history, std::move(x));
  x = wan::run(ops, middle_, history, std::move(x));
  x = wan::run(ops, head_, history, std::move(x));
  return ops.conv(x, moments_, {});
}

Tensor WanEncoder::encode(Ops& ops, const Tensor& video) const {
  require((video.rank() == 4 || (video.rank() == 5 && video.dim(0) == 1)) && video.dim(-4) == 3 &&
              video.numel() > 0 && video.dim(-3) % kFramesPerLatent == 1 &&
              video.dim(-2) % kPixelsPerLatent == 0 && video.dim(-1) % kPixelsPerLatent == 0,
          "video encoder: input is {}, expected [3, 1+{}k, multiples of {}]", to_string(video.shape()),
          kFramesPerLatent, kPixelsPerLatent);
  const std::int64_t frames = video.dim(-3), height = video.dim(-2), width = video.dim(-1);
  const Tensor pixels = cells_from_latent(video).reshape({frames, height, width, 3});
  const LatentGrid grid{(frames - 1) / kFramesPerLatent + 1, height / kPixelsPerLatent,
                        width / kPixelsPerLatent};
  Tensor cells = Tensor::zeros(DType::f32, {grid.cells(), kLatentChannels});
  float* out = cells.data<float>();
  wan::History history;
  for (std::int64_t first = 0; first < frames; first += first == 0 ? 1 : kFramesPerLatent) {
    const std::int64_t count = first == 0 ? 1 : kFramesPerLatent;
    const Tensor moments = encode_chunk(ops, history, to_device(ops, pixels.rows(first, count), DType::f32));
    if (ops.arena().counts_only()) continue;
    const Tensor host = ops.download(moments);  // the mean, then the log variance, which is not used
    for (const float* cell = host.data<float>(); cell != host.data<float>() + host.numel();
         cell += host.dim(-1))
      out = std::copy_n(cell, kLatentChannels, out);
  }
  normalise_latent(cells);
  return latent_from_cells(cells, grid);
}

WanDecoder WanDecoder::load(Ops& ops, const std::filesystem::path& file) {
  const auto store = open_checkpoint(file);
  return WanDecoder(WeightLoader(ops, *store, DType::f32));
}

WanDecoder::WanDecoder(const WeightLoader& weights) {
  const WeightLoader w = weights.in("decoder");
  latent_in_ = weights.conv("conv2", {kLatentChannels, kLatentChannels, 1, 1, 1});
  std::int64_t channels = wan::channels_of(w, "conv1.weight");
  conv_in_ = w.conv("conv1", {channels, kLatentChannels, 3, 3, 3});
  middle_ = wan::load_middle(w.in("middle"), channels);
  std::int64_t total_time = 1, total_space = kPatch;
  for (std::size_t i = 0; w.has(fmt::format("upsamples.{}.upsamples.0.residual.2.weight", i)); ++i) {
    const WeightLoader stage_weights = w.in(fmt::format("upsamples.{}.upsamples", i));
    const std::int64_t in = channels;
    Stage stage;
    stage.blocks = wan::load_residuals(stage_weights, channels);
    const WeightLoader up = stage_weights.in(std::to_string(stage.blocks.size()));
    if (up.has("resample.1.weight")) {
      const bool doubles_time = up.has("time_conv.weight");
      stage.up = Upsampler{up.conv("resample.1", {channels, channels, 3, 3}),
                           {},
                           duplication(weights.ops(), in, channels, doubles_time ? 2 : 1)};
      if (doubles_time) stage.up->time = up.conv("time_conv", {2 * channels, channels, 3, 1, 1});
      total_time *= doubles_time ? 2 : 1;
      total_space *= 2;
    }
    stages_.push_back(std::move(stage));
  }
  check_scale(weights, total_time, total_space);
  head_ = wan::load_head(w.in("head"), channels, kPatchChannels);
}

Tensor WanDecoder::run(Ops& ops, const Stage& stage, wan::History& history, bool first, Tensor x) const {
  Tensor h = x;
  for (const auto& block : stage.blocks) h = wan::run(ops, block, history, std::move(h));
  if (!stage.up) return h;
  // The first latent is one frame: it passes by the doubling of time, which never sees it.
  const bool doubles_time = stage.up->time && !first;
  if (doubles_time) h = ops.interleave_time(history.causal_conv(ops, std::move(h), *stage.up->time));
  h = ops.upsample_nearest(h);
  ConvOptions same;
  same.pad_front = same.pad_back = {0, 1, 1};
  h = ops.conv(h, stage.up->space, same);

  x = ops.conv(x, stage.up->duplicate, {});
  if (stage.up->time) x = ops.interleave_time(x);
  if (stage.up->time && first) x = x.rows(1, x.dim(0) - 1);
  ops.add(h, ops.unpatchify(x, 2));
  return h;
}

void WanDecoder::decode_chunks(Ops& ops, const Tensor& latent, const ChunkSink& sink) const {
  wan::History history;
  for (std::int64_t t = 0; t < latent.dim(0); ++t) {
    Tensor x = to_device(ops, latent.rows(t, 1), DType::f32);
    x = ops.conv(x, latent_in_, {});
    x = history.causal_conv(ops, std::move(x), conv_in_);
    x = wan::run(ops, middle_, history, std::move(x));
    for (const Stage& stage : stages_) x = run(ops, stage, history, t == 0, std::move(x));
    x = wan::run(ops, head_, history, std::move(x));
    sink(ops.unpatchify(x, kPatch));
  }
}

}  // namespace magi
