// SPDX-License-Identifier: Apache-2.0
#include "model/audio_decoder.h"

#include "decoder_scene.h"
#include "random_weights.h"
#include "support/expect_error.h"

namespace magi {
namespace {

TEST(GoldenAudioDecoder, Waveforms) {
  GOLDEN_CASE(golden, "audio_decode");
  DecoderScene scene;
  const AudioDecoder decoder = AudioDecoder::load(scene.ops(), golden_model("stable-audio-open-1.0"));
  const auto lengths = lengths_in(golden, "latent_");
  ASSERT_FALSE(lengths.empty());
  for (const std::string& n : lengths) {
    const Tensor want = golden.get("waveform_" + n);
    const Tensor waveform = decoder.decode(scene.ops(), golden.get("latent_" + n));
    expect_close("waveform_" + n, waveform.reshape(want.shape()), want, 1e-4);
  }
  EXPECT_EQ(scene.arena().used_bytes(), 0u);
}

nlohmann::json small_config() {
  return nlohmann::json::parse(R"({"sample_rate": 48000, "model": {"pretransform": {"config": {"decoder": {
    "type": "oobleck", "config": {"out_channels": 1, "channels": 2, "c_mults": [1, 3], "strides": [2, 4],
    "latent_dim": 5, "use_snake": true, "final_tanh": true}}}}}})");
}

TEST(AudioDecoder, ReadsListsInReverse) {
  const AudioConfig config = read_audio_config(ConfigNode(small_config(), "model_config.json"));
  EXPECT_EQ(config.sample_rate, 48000);
  EXPECT_EQ(config.first_channels, 6);
  ASSERT_EQ(config.stages.size(), 2u);
  EXPECT_EQ(config.stages[0].channels, 2);
  EXPECT_EQ(config.stages[0].stride, 4);
  EXPECT_EQ(config.stages[1].channels, 2);
  EXPECT_EQ(config.stages[1].stride, 2);
  EXPECT_TRUE(config.final_tanh);
}

TEST(AudioDecoder, RefusesOtherDecoders) {
  const auto with = [](const char* key, nlohmann::json value) {
    nlohmann::json json = small_config();
    json["model"]["pretransform"]["config"]["decoder"]["config"][key] = std::move(value);
    return [json] { read_audio_config(ConfigNode(json, "model_config.json")); };
  };
  expect_error(with("use_snake", false), "snake");
  expect_error(with("use_nearest_upsample", true), "transposed");
  expect_error(with("strides", {2}), "strides");
  expect_error(with("strides", {2, 0}), "strides");
  expect_error([] { read_audio_config(ConfigNode(nlohmann::json::object(), "model_config.json")); }, "type");
}

/// The release's sizes for ten seconds: a few of the widest activations, 512,000 samples of 128 channels in
/// f32.
TEST(AudioDecoder, TenSecondsTakeReasonableMemory) {
  DecoderScene scene;
  AudioConfig config = read_audio_config(ConfigNode(small_config(), "model_config.json"));
  config.latent_channels = 64;
  config.out_channels = 2;
  config.first_channels = 2048;
  config.stages = {{1024, 8}, {512, 8}, {256, 4}, {128, 4}, {128, 2}};
  AudioConfig thin = config;  // as long, with a 64th of the channels
  thin.first_channels /= 64;
  for (auto& stage : thin.stages) stage.channels /= 64;

  RandomWeights w(1);
  const auto conv = [&](const std::string& name, const Shape& shape, std::int64_t bias) {
    w.add(name + ".weight_v", w.draw(name, shape, 1));
    w.add(name + ".weight_g", w.draw(name + "g", {shape[0], 1, 1}, 0.1, 1));
    if (bias) w.add(name + ".bias", w.draw(name + "b", {bias}, 0.1));
  };
  const auto snake = [&](const std::string& name, std::int64_t c) {
    w.add(name + ".alpha", w.draw(name + "a", {c}, 0.1));
    w.add(name + ".beta", w.draw(name + "b", {c}, 0.1));
  };
  std::int64_t channels = thin.first_channels;
  conv("layers.0", {channels, 64, 7}, channels);
  for (std::size_t i = 0; i < thin.stages.size(); ++i) {
    const std::string stage = "layers." + std::to_string(i + 1) + ".layers.";
    const auto [out, stride] = thin.stages[i];
    snake(stage + "0", channels);
    conv(stage + "1", {channels, out, 2 * stride}, out);
    channels = out;
    for (int k = 2; k < 5; ++k) {
      const std::string unit = stage + std::to_string(k) + ".layers.";
      snake(unit + "0", channels);
      conv(unit + "1", {channels, channels, 7}, channels);
      snake(unit + "2", channels);
      conv(unit + "3", {channels, channels, 1}, channels);
    }
  }
  snake("layers.6", channels);
  conv("layers.7", {2, channels, 7}, 0);
  const auto store = w.store();
  const AudioDecoder decoder(WeightLoader(scene.ops(), *store, DType::f32), thin);
  Arena counting = Arena::counting({});
  scene.ops().use_arena(counting);
  const Tensor waveform = decoder.decode(scene.ops(), Tensor::zeros(DType::f32, {250, 64}));
  EXPECT_EQ(waveform.shape(), (Shape{2, 512000}));
  const double widest = 512000.0 * 2 * 4;
  std::printf("peak of the audio decoder: %.2f of its widest activation\n",
              static_cast<double>(counting.peak_bytes()) / widest);
  EXPECT_LE(static_cast<double>(counting.peak_bytes()), 4 * widest);
}

}  // namespace
}  // namespace magi
