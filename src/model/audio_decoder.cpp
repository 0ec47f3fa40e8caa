// SPDX-License-Identifier: Apache-2.0
#include "model/audio_decoder.h"

#include <cmath>

#include "io/checkpoint.h"
#include "model/to_device.h"

namespace magi {
namespace {

constexpr std::int64_t kTaps = 7;

/// Weight norm folded: g·v/‖v‖, the norm over all axes but the first.
Tensor folded(const Tensor& v, const Tensor& gain) {
  Tensor weight = Tensor::empty(DType::f32, v.shape());
  const std::int64_t width = v.numel() / v.dim(0);
  for (std::int64_t row = 0; row < v.dim(0); ++row) {
    const float* from = v.data<float>() + row * width;
    float* to = weight.data<float>() + row * width;
    double square = 0;
    for (std::int64_t i = 0; i < width; ++i) square += double{from[i]} * from[i];
    const double scale = square > 0 ? gain.data<float>()[row] / std::sqrt(square) : 0;
    for (std::int64_t i = 0; i < width; ++i) to[i] = static_cast<float>(from[i] * scale);
  }
  return weight;
}

/// `shape`: [out, in, taps], transposed convolutions [in, out, taps].
ConvWeight load_conv(const WeightLoader& w, const Shape& shape, bool bias, bool transposed = false) {
  Tensor weight = w.stored("weight_v", shape);
  const Tensor gain = w.host("weight_g", {shape[0], 1, 1});
  if (!w.ops().arena().counts_only()) weight = folded(weight.to(DType::f32), gain);
  const Tensor b = bias ? w.host("bias", {transposed ? shape[1] : shape[0]}) : Tensor();
  return w.ops().pack_conv(weight, b, false, transposed, DType::f32);
}

/// Convolution along the last axis that keeps the length.
Tensor conv_same(Ops& ops, const Tensor& x, const ConvWeight& w, std::int64_t dilation = 1) {
  const std::int64_t pad = dilation * (w.kernel[2] - 1) / 2;
  ConvOptions options;
  options.dilation = {1, 1, dilation};
  options.pad_front = options.pad_back = {0, 0, pad};
  return ops.conv(x, w, options);
}

}  // namespace

AudioConfig read_audio_config(const ConfigNode& config) {
  const ConfigNode pretransform = config.node("model").node("pretransform").node("config");
  const ConfigNode outer = pretransform.node("decoder");
  const ConfigNode decoder = outer.node("config");
  require(outer.text("type", std::nullopt) == "oobleck" && decoder.boolean("use_snake", false) &&
              !decoder.boolean("use_nearest_upsample", false),
          "{}: expected an Oobleck decoder with snake activations and transposed convolutions",
          outer.where("type"));
  const std::int64_t channels = decoder.integer("channels", 128, 1, 8192);
  const auto multiples = decoder.integers("c_mults", std::nullopt, 1, 128);
  const auto strides = decoder.integers("strides", std::nullopt, 1, 1024);
  require(!multiples.empty() && multiples.size() == strides.size(), "{}: {} channel multiples for {} strides",
          decoder.where("c_mults"), multiples.size(), strides.size());

  AudioConfig result;
  result.sample_rate = config.integer("sample_rate", result.sample_rate, 1, 1'000'000);
  result.latent_channels = decoder.integer("latent_dim", std::nullopt, 1, 8192);
  result.out_channels = decoder.integer("out_channels", 2, 1, 64);
  result.first_channels = multiples.back() * channels;
  // The file lists stages in the encoder's order; its first multiple, 1, is implied.
  for (std::size_t i = strides.size(); i-- > 0;)
    result.stages.push_back({(i > 0 ? multiples[i - 1] : 1) * channels, strides[i]});
  result.final_tanh = decoder.boolean("final_tanh", true) || outer.boolean("soft_clip", false);
  return result;
}

AudioDecoder AudioDecoder::load(Ops& ops, const std::filesystem::path& directory) {
  const auto store = open_checkpoint(directory / "model.safetensors");
  const WeightLoader weights(ops, *store, DType::f32, "pretransform.model.decoder.");
  return AudioDecoder(weights, read_audio_config(ConfigNode::read(directory / "model_config.json")));
}

AudioDecoder::AudioDecoder(const WeightLoader& weights, AudioConfig config) : config_(std::move(config)) {
  const auto layer = [](const WeightLoader& w, std::size_t i) { return w.in(fmt::format("layers.{}", i)); };
  const auto snake = [](const WeightLoader& w, std::int64_t channels) {
    return Snake{w.tensor("alpha", {channels}), w.tensor("beta", {channels})};
  };
  std::int64_t channels = config_.first_channels;
  conv_in_ = load_conv(layer(weights, 0), {channels, config_.latent_channels, kTaps}, true);
  for (std::size_t i = 0; i < config_.stages.size(); ++i) {
    const auto [out, stride] = config_.stages[i];
    const WeightLoader w = layer(weights, i + 1);
    Stage stage{snake(layer(w, 0), channels),
                load_conv(layer(w, 1), {channels, out, 2 * stride}, true, true),
                stride,
                {}};
    channels = out;
    const std::int64_t dilations[] = {1, 3, 9};
    for (std::size_t k = 0; k < std::size(dilations); ++k) {
      const WeightLoader unit = layer(w, k + 2);
      stage.residuals.push_back({snake(layer(unit, 0), channels), snake(layer(unit, 2), channels),
                                 load_conv(layer(unit, 1), {channels, channels, kTaps}, true),
                                 load_conv(layer(unit, 3), {channels, channels, 1}, true), dilations[k]});
    }
    stages_.push_back(std::move(stage));
  }
  const std::size_t last = config_.stages.size() + 1;
  snake_out_ = snake(layer(weights, last), channels);
  conv_out_ = load_conv(layer(weights, last + 1), {config_.out_channels, channels, kTaps}, false);
}

Tensor AudioDecoder::run(Ops& ops, const Residual& residual, Tensor x) const {
  Tensor h = ops.snake(x, residual.snake1.alpha, residual.snake1.beta);
  h = conv_same(ops, h, residual.conv7, residual.dilation);
  h = ops.snake(h, residual.snake2.alpha, residual.snake2.beta);
  h = conv_same(ops, h, residual.conv1);
  ops.add(h, x);
  return h;
}

Tensor AudioDecoder::decode(Ops& ops, const Tensor& latent) const {
  require((latent.rank() == 2 || (latent.rank() == 3 && latent.dim(0) == 1)) &&
              latent.dim(-1) == config_.latent_channels && latent.numel() > 0,
          "audio decoder: latent is {}, expected [A,{}]", to_string(latent.shape()), config_.latent_channels);
  Tensor x = to_device(ops, latent.reshape({1, 1, latent.dim(-2), latent.dim(-1)}), DType::f32);
  x = conv_same(ops, x, conv_in_);
  for (const Stage& stage : stages_) {
    x = ops.snake(x, stage.snake.alpha, stage.snake.beta);
    const std::int64_t trim = (stage.stride + 1) / 2;
    ConvOptions options;
    options.stride = {1, 1, stage.stride};
    options.pad_front = options.pad_back = {0, 0, trim};
    x = ops.conv(x, stage.upsample, options);
    for (const Residual& residual : stage.residuals) x = run(ops, residual, std::move(x));
  }
  x = ops.snake(x, snake_out_.alpha, snake_out_.beta);
  x = conv_same(ops, x, conv_out_);
  if (config_.final_tanh) x = ops.tanh(x);

  Tensor waveform = Tensor::empty(DType::f32, {x.dim(3), x.dim(2)});
  if (ops.arena().counts_only()) return waveform;
  const Tensor samples = ops.download(x);
  for (std::int64_t i = 0; i < x.dim(2); ++i)
    for (std::int64_t c = 0; c < x.dim(3); ++c)
      waveform.data<float>()[c * x.dim(2) + i] = samples.data<float>()[i * x.dim(3) + c];
  return waveform;
}

}  // namespace magi
