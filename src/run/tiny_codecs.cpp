// SPDX-License-Identifier: Apache-2.0
// The tiny root's turbo video decoder, audio decoder and Wan autoencoder.
#include <array>
#include <nlohmann/json.hpp>

#include "run/tiny_weights.h"

namespace magi {
namespace {

const Shape k333{3, 3, 3}, k311{3, 1, 1}, k111{1, 1, 1}, k33{3, 3}, k11{1, 1};
constexpr std::int64_t kLatent = 48;
constexpr std::int64_t kPixelChannels = 12;  // 3 colours, patches of 2×2

// ---- turbo decoder, in the decoder's order
struct TurboBlock {
  std::int64_t channels, resnets;
  bool space, time;
};
constexpr std::array<TurboBlock, 4> kTurbo{
    {{32, 2, true, true}, {24, 1, true, true}, {16, 1, true, false}, {8, 1, false, false}}};

void turbo_resnet(WeightMaker& w, const std::string& name, std::int64_t out, std::int64_t in) {
  w.conv(name + ".conv1.conv", out, in, k333);
  w.conv(name + ".conv2.conv", out, out, k333);
  if (out != in) w.conv(name + ".conv_shortcut.conv", out, in, k111);
}

// ---- audio decoder: strides in the encoder's order, 2048 samples a latent
constexpr std::array<std::int64_t, 5> kStrides{2, 4, 4, 8, 8}, kMultiples{1, 2, 4, 8, 16};
constexpr std::int64_t kAudioChannels = 4, kAudioLatent = 64;

void weight_norm_conv(WeightMaker& w, const std::string& name, const Shape& shape, std::int64_t bias) {
  w.normal(name + ".weight_v", shape, 1);
  w.normal(name + ".weight_g", {shape[0], 1, 1}, 0.05f, 0.7f);
  if (bias) w.normal(name + ".bias", {bias}, 0.02f);
}

void snake(WeightMaker& w, const std::string& name, std::int64_t channels) {
  w.normal(name + ".alpha", {channels}, 0.2f);
  w.normal(name + ".beta", {channels}, 0.2f);
}

// ---- Wan autoencoder
constexpr std::array<std::int64_t, 4> kWan{4, 8, 16, 16};  // channels of the stages

void wan_residual(WeightMaker& w, const std::string& name, std::int64_t out, std::int64_t in) {
  w.normal(name + ".residual.0.gamma", {in, 1, 1, 1}, 0.05f, 1);
  w.conv(name + ".residual.2", out, in, k333);
  w.normal(name + ".residual.3.gamma", {out, 1, 1, 1}, 0.05f, 1);
  w.conv(name + ".residual.6", out, out, k333);
  if (out != in) w.conv(name + ".shortcut", out, in, k111);
}

void wan_middle(WeightMaker& w, const std::string& name, std::int64_t channels) {
  wan_residual(w, name + ".0", channels, channels);
  w.normal(name + ".1.norm.gamma", {channels, 1, 1}, 0.05f, 1);
  w.conv(name + ".1.to_qkv", 3 * channels, channels, k11);
  w.conv(name + ".1.proj", channels, channels, k11);
  wan_residual(w, name + ".2", channels, channels);
}

void wan_head(WeightMaker& w, const std::string& name, std::int64_t out, std::int64_t in) {
  w.normal(name + ".0.gamma", {in, 1, 1, 1}, 0.05f, 1);
  w.conv(name + ".2", out, in, k333);
}

void wan_encoder(WeightMaker& w) {
  w.conv("encoder.conv1", kWan[0], kPixelChannels, k333);
  std::int64_t channels = kWan[0];
  for (std::size_t stage = 0; stage < kWan.size(); ++stage) {
    const std::string name = "encoder.downsamples." + std::to_string(stage) + ".downsamples.";
    for (int block = 0; block < 2; ++block) {
      wan_residual(w, name + std::to_string(block), kWan[stage], channels);
      channels = kWan[stage];
    }
    if (stage + 1 == kWan.size()) break;
    w.conv(name + "2.resample.1", channels, channels, k33);
    if (stage > 0) w.conv(name + "2.time_conv", channels, channels, k311);
  }
  wan_middle(w, "encoder.middle", channels);
  wan_head(w, "encoder.head", 2 * kLatent, channels);
  w.conv("conv1", 2 * kLatent, 2 * kLatent, k111);
}

void wan_decoder(WeightMaker& w) {
  w.conv("conv2", kLatent, kLatent, k111);
  std::int64_t channels = kWan.back();
  w.conv("decoder.conv1", channels, kLatent, k333);
  wan_middle(w, "decoder.middle", channels);
  for (std::size_t stage = 0; stage < kWan.size(); ++stage) {
    const std::string name = "decoder.upsamples." + std::to_string(stage) + ".upsamples.";
    const std::int64_t out = kWan[kWan.size() - 1 - stage];
    for (int block = 0; block < 3; ++block) {
      wan_residual(w, name + std::to_string(block), out, channels);
      channels = out;
    }
    if (stage + 1 == kWan.size()) break;
    w.conv(name + "3.resample.1", channels, channels, k33);
    if (stage < 2) w.conv(name + "3.time_conv", 2 * channels, channels, k311);
  }
  wan_head(w, "decoder.head", kPixelChannels, channels);
}

}  // namespace

nlohmann::json tiny_turbo_config() {
  return {{"in_channels", 3},
          {"out_channels", 3},
          {"latent_channels", kLatent},
          {"decoder_block_out_channels", {8, 16, 24, 32}},
          {"decoder_layers_per_block", {1, 1, 1, 2, 1}},
          {"decoder_spatio_temporal_scaling", {false, true, true, true}},
          {"decoder_spatio_only", {false, true, false, false}},
          {"decoder_is_dw_conv", {false, false, false, false, false}},
          {"decoder_dw_kernel_size", 5},
          {"decoder_causal", false},
          {"resnet_norm_eps", 1e-6},
          {"patch_size", 2},
          {"patch_size_t", 1},
          {"use_unpatchify", true},
          {"first_chunk_size", 7},
          {"step_size", 7},
          {"spatial_compression_ratio", 16},
          {"temporal_compression_ratio", 4},
          {"scaling_factor", 1.0}};
}

NamedTensors tiny_turbo_decoder(NoiseGenerator& noise) {
  WeightMaker w(noise);
  const std::string d = "module.decoder.";
  std::int64_t channels = kTurbo[0].channels;
  w.conv(d + "conv_in.conv", channels, kLatent, k333);
  turbo_resnet(w, d + "mid_block.resnets.0", channels, channels);
  for (std::size_t i = 0; i < kTurbo.size(); ++i) {
    const TurboBlock& block = kTurbo[i];
    const std::string name = d + "up_blocks." + std::to_string(i) + ".";
    if (block.channels != channels) turbo_resnet(w, name + "conv_in", block.channels, channels);
    channels = block.channels;
    if (block.space) w.conv(name + "upsamplers.0.resample.1", channels, channels, k33);
    if (block.time) w.conv(name + "upsamplers.0.time_conv.conv", 2 * channels, channels, k311);
    for (std::int64_t r = 0; r < block.resnets; ++r)
      turbo_resnet(w, name + "resnets." + std::to_string(r), channels, channels);
  }
  w.conv(d + "conv_out.conv", kPixelChannels, channels, k333, 0.5f);
  return w.take();
}

nlohmann::json tiny_audio_config() {
  const nlohmann::json decoder{{"out_channels", 2},   {"channels", kAudioChannels}, {"c_mults", kMultiples},
                               {"strides", kStrides}, {"latent_dim", kAudioLatent}, {"use_snake", true},
                               {"final_tanh", true}};
  return {{"sample_rate", 44100},
          {"model",
           {{"pretransform",
             {{"config",
               {{"latent_dim", kAudioLatent},
                {"downsampling_ratio", 2048},
                {"io_channels", 2},
                {"decoder", {{"type", "oobleck"}, {"config", decoder}}}}}}}}}};
}

NamedTensors tiny_audio_decoder(NoiseGenerator& noise) {
  WeightMaker w(noise);
  const std::string d = "pretransform.model.decoder.layers.";
  std::int64_t channels = kMultiples.back() * kAudioChannels;
  weight_norm_conv(w, d + "0", {channels, kAudioLatent, 7}, channels);
  for (std::size_t i = 0; i < kStrides.size(); ++i) {
    const std::size_t stage = kStrides.size() - 1 - i;
    const std::int64_t out = (stage > 0 ? kMultiples[stage - 1] : 1) * kAudioChannels;
    const std::string name = d + std::to_string(i + 1) + ".layers.";
    snake(w, name + "0", channels);
    weight_norm_conv(w, name + "1", {channels, out, 2 * kStrides[stage]}, out);
    for (int unit = 2; unit < 5; ++unit) {
      const std::string residual = name + std::to_string(unit) + ".layers.";
      snake(w, residual + "0", out);
      weight_norm_conv(w, residual + "1", {out, out, 7}, out);
      snake(w, residual + "2", out);
      weight_norm_conv(w, residual + "3", {out, out, 1}, out);
    }
    channels = out;
  }
  const std::string last = d + std::to_string(kStrides.size() + 1);
  snake(w, last, channels);
  weight_norm_conv(w, d + std::to_string(kStrides.size() + 2), {2, channels, 7}, 0);
  return w.take();
}

NamedTensors tiny_wan_vae(NoiseGenerator& noise) {
  WeightMaker w(noise);
  wan_encoder(w);
  wan_decoder(w);
  return w.take();
}

}  // namespace magi
