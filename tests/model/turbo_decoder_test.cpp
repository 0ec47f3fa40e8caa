// SPDX-License-Identifier: Apache-2.0
#include "model/turbo_decoder.h"

#include "decoder_scene.h"
#include "model/to_device.h"
#include "random_weights.h"
#include "support/expect_error.h"

namespace magi {
namespace {

void check_clips(DType dtype, const std::string& label, double tolerance) {
  GOLDEN_CASE(golden, "turbo_vae_decode");
  DecoderScene scene;
  const TurboDecoder decoder = TurboDecoder::load(scene.ops(), golden_model("turbo_vae"), dtype);
  const auto lengths = lengths_in(golden, "latent_");
  ASSERT_FALSE(lengths.empty());
  for (const std::string& n : lengths) {
    const Tensor want = golden.get("video_" + n);
    const Tensor video = channels_first(decoder.decode_f32(scene.ops(), golden.get("latent_" + n)));
    expect_close(label + " video_" + n, video.reshape(want.shape()), want, tolerance);
  }
  EXPECT_EQ(scene.arena().used_bytes(), 0u);
}

TEST(GoldenTurboDecoder, ClipsF32) {
  check_clips(DType::f32, "f32", 1e-4);
}
/// There is no golden data in bf16: its distance to f32 is measured and bounded.
TEST(GoldenTurboDecoder, ClipsBf16) {
  check_clips(DType::bf16, "bf16", 0.05);
}

TEST(GoldenTurboDecoder, Windows) {
  GOLDEN_CASE(golden, "turbo_vae_decode");
  DecoderScene scene;
  const TurboDecoder decoder = TurboDecoder::load(scene.ops(), golden_model("turbo_vae"), DType::f32);
  const Tensor in = golden.get("chunk_in");
  const Tensor cells = cells_from_latent(in).reshape({in.dim(-3), in.dim(-2), in.dim(-1), in.dim(-4)});
  for (const bool first : {true, false}) {
    const Tensor want = golden.get(first ? "chunk_first" : "chunk_mid");
    const Tensor frames = scene.ops().download(
        decoder.decode_window(scene.ops(), to_device(scene.ops(), cells, DType::f32), first));
    expect_close(first ? "first window" : "middle window", channels_first(frames).reshape(want.shape()), want,
                 1e-4);
  }
}

nlohmann::json small_config() {
  return nlohmann::json::parse(R"({"latent_channels": 48, "decoder_block_out_channels": [4, 6, 8, 8],
    "decoder_layers_per_block": [1, 1, 0, 2, 1], "decoder_spatio_temporal_scaling": [false, true, true, true],
    "decoder_spatio_only": [false, true, false, false], "decoder_is_dw_conv": [false, true, true, false, true],
    "decoder_dw_kernel_size": 3, "patch_size": 2, "use_unpatchify": true, "first_chunk_size": 3, "step_size": 2})");
}
TurboConfig config_of(const nlohmann::json& json) {
  return read_turbo_config(ConfigNode(json, "turbo.json"));
}

TEST(TurboDecoder, ReadsListsInReverse) {
  const TurboConfig config = config_of(small_config());
  EXPECT_EQ(config.mid_resnets, 1);
  EXPECT_TRUE(config.mid_depthwise);
  ASSERT_EQ(config.blocks.size(), 4u);
  EXPECT_EQ(config.blocks[2].channels, 6);
  EXPECT_EQ(config.blocks[0].resnets, 2);
  EXPECT_TRUE(config.blocks[2].upsample_space && !config.blocks[2].upsample_time &&
              config.blocks[2].depthwise);
  EXPECT_FALSE(config.blocks[3].upsample_space || config.blocks[3].depthwise);
}

TEST(TurboDecoder, RefusesWhatItCannotDo) {
  const auto with = [](const char* key, nlohmann::json value) {
    nlohmann::json json = small_config();
    json[key] = std::move(value);
    return [json] { config_of(json); };
  };
  expect_error(with("decoder_causal", true), "causal");
  expect_error(with("patch_size", 4), "patches");
  expect_error(with("use_unpatchify", false), "patches");
  expect_error(with("decoder_layers_per_block", {1, 2}), "disagree");
  expect_error(with("decoder_spatio_only", {false, false, false, false}), "frames");
  expect_error(with("decoder_dw_kernel_size", 4), "odd");
  expect_error(with("step_size", 0), "step_size");
  expect_error(with("first_chunk_size", "three"), "first_chunk_size");
}

/// Every frame of every length comes once, from a window where the latents beside it were seen.
TEST(TurboDecoder, WindowsCoverTheClip) {
  TurboConfig config;
  for (config.first_chunk = 1; config.first_chunk <= 7; config.first_chunk += 2)
    for (config.step = 1; config.step <= 7; config.step += 3)
      for (std::int64_t latents = 1; latents <= 40; ++latents) {
        std::int64_t frames = 0, next = 0;
        for (const TurboWindow& window : plan_windows(latents, config)) {
          const std::int64_t all = 4 * (window.end - window.first) - (window.opens_clip ? 3 : 0);
          const std::int64_t kept_first = window.opens_clip ? 0 : 4 * window.first - 3 + window.drop_front;
          EXPECT_EQ(kept_first, next);
          frames += all - window.drop_front - window.drop_back;
          next = kept_first + all - window.drop_front - window.drop_back;
          EXPECT_LE(window.end - window.first, std::max(config.first_chunk + 1, config.step + 2));
        }
        EXPECT_EQ(frames, 4 * (latents - 1) + 1);
      }
}

/// The same decoder with depthwise-then-pointwise convolutions multiplied out to dense ones.
NamedTensors multiplied_out(const RandomWeights& separable) {
  NamedTensors dense;
  const auto store = separable.store();
  for (const auto& [name, tensor] : separable.tensors()) {
    const std::string base = name.substr(0, name.find("pointwise_conv"));
    if (name.ends_with("pointwise_conv.weight")) {
      const Tensor depth = store->load(base + "depthwise_conv.weight");
      const Tensor depth_bias = store->load(base + "depthwise_conv.bias");
      const std::int64_t out = tensor.dim(0), in = tensor.dim(1), taps = depth.numel() / in;
      Tensor weight = Tensor::empty(DType::f32, {out, in, depth.dim(2), depth.dim(3), depth.dim(4)});
      Tensor bias = store->load(base + "pointwise_conv.bias").clone();
      for (std::int64_t o = 0; o < out; ++o)
        for (std::int64_t i = 0; i < in; ++i) {
          const float p = tensor.data<float>()[o * in + i];
          bias.data<float>()[o] += p * depth_bias.data<float>()[i];
          for (std::int64_t k = 0; k < taps; ++k)
            weight.data<float>()[(o * in + i) * taps + k] = p * depth.data<float>()[i * taps + k];
        }
      dense.emplace_back(base + "conv.weight", weight);
      dense.emplace_back(base + "conv.bias", bias);
    } else if (name.find("thwise_conv") == std::string::npos &&
               name.find("intwise_conv") == std::string::npos) {
      dense.emplace_back(name, tensor);
    }
  }
  return dense;
}

TEST(TurboDecoder, DepthwiseEqualsItsDenseProduct) {
  DecoderScene scene;
  TurboConfig config = config_of(small_config());
  const RandomWeights weights = turbo_weights(config, 5);
  const Tensor latent = random_normal(6, {48, 4, 2, 3});
  const auto store = weights.store();
  const Tensor separable =
      TurboDecoder(WeightLoader(scene.ops(), *store, DType::f32), config).decode_f32(scene.ops(), latent);
  config.mid_depthwise = false;
  for (auto& block : config.blocks) block.depthwise = false;
  const auto dense_store = tensor_store_of("dense", multiplied_out(weights));
  const Tensor dense = TurboDecoder(WeightLoader(scene.ops(), *dense_store, DType::f32), config)
                           .decode_f32(scene.ops(), latent);
  expect_close("depthwise", separable, dense, 1e-5);
}

TEST(TurboDecoder, WideDepthwiseKernelsRun) {
  DecoderScene scene;
  TurboConfig config = config_of(small_config());
  config.depthwise_kernel = 5;
  const auto store = turbo_weights(config, 5).store();
  const TurboDecoder decoder(WeightLoader(scene.ops(), *store, DType::f32), config);
  const Tensor video = decoder.decode_f32(scene.ops(), random_normal(6, {48, 2, 1, 1}));
  EXPECT_EQ(video.shape(), (Shape{5, 16, 16, 3}));
  for (float v : video.values<float>()) ASSERT_TRUE(std::isfinite(v));
}

TEST(TurboDecoder, PixelsAreTheRoundedVideo) {
  DecoderScene scene;
  const TurboConfig config = config_of(small_config());
  const auto store = turbo_weights(config, 8).store();
  const TurboDecoder decoder(WeightLoader(scene.ops(), *store, DType::f32), config);
  const Tensor latent = random_normal(9, {48, 6, 1, 2});
  EXPECT_EQ(rounded_frames(decoder, scene.ops(), latent), 21);
}

/// Scratch memory does not grow with the clip.
TEST(TurboDecoder, MemoryFollowsTheWindow) {
  DecoderScene scene;
  const TurboConfig config = config_of(small_config());
  const auto store = turbo_weights(config, 8).store();
  const TurboDecoder decoder(WeightLoader(scene.ops(), *store, DType::f32), config);
  const auto peak = [&](std::int64_t latents) {
    Arena counting = Arena::counting({});
    scene.ops().use_arena(counting);
    decoder.decode(scene.ops(), Tensor::zeros(DType::f32, {48, latents, 2, 3}),
                   [](const Tensor&) { FAIL(); });
    return counting.peak_bytes();
  };
  EXPECT_EQ(peak(7), peak(31));
}

TEST(TurboDecoder, NamesWhatIsMissing) {
  DecoderScene scene;
  const TurboConfig config = config_of(small_config());
  const RandomWeights weights = turbo_weights(config, 8);
  NamedTensors incomplete;
  for (const auto& [name, tensor] : weights.tensors())
    if (name != "decoder.up_blocks.0.upsamplers.0.time_conv.conv.bias") incomplete.emplace_back(name, tensor);
  const auto store = tensor_store_of("broken.ckpt", incomplete);
  expect_error([&] { TurboDecoder(WeightLoader(scene.ops(), *store, DType::f32), config); },
               "decoder.up_blocks.0.upsamplers.0.time_conv.conv.bias");
  expect_error([&] { TurboDecoder::load(scene.ops(), "/nonexistent", DType::f32); }, "/nonexistent");
}

}  // namespace
}  // namespace magi
