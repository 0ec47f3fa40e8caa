// SPDX-License-Identifier: Apache-2.0
#include "model/wan_vae.h"

#include "decoder_scene.h"
#include "io/checkpoint.h"
#include "random_weights.h"
#include "support/expect_error.h"
#include "wan_reference.h"

namespace magi {
namespace {

TEST(GoldenWanVae, Encode) {
  GOLDEN_CASE(golden, "wan_vae_encode");
  DecoderScene scene;
  const WanEncoder encoder = WanEncoder::load(scene.ops(), golden_model("vae") / "Wan2.2_VAE.pth");
  const auto lengths = lengths_in(golden, "video_");
  ASSERT_FALSE(lengths.empty());
  for (const std::string& n : lengths) {
    const Tensor want = golden.get("latent_" + n);
    const Tensor latent = encoder.encode(scene.ops(), golden.get("video_" + n));
    expect_close("latent_" + n, latent.reshape(want.shape()), want, 1e-4);
  }
  EXPECT_EQ(scene.arena().used_bytes(), 0u);
}

/// Encodes and decodes, and compares both with the direct computation.
void compare_with_direct(const TensorStore& store, const Tensor& video) {
  DecoderScene scene;
  const WeightLoader weights(scene.ops(), store, DType::f32);
  const wan_reference::Model direct(store);
  const Tensor latent = WanEncoder(weights).encode(scene.ops(), video);
  expect_close("latent", latent, direct.encode(video), 1e-4);
  const Tensor back = channels_first(WanDecoder(weights).decode_f32(scene.ops(), latent));
  expect_close("decoded", back, direct.decode(latent), 1e-4);
  EXPECT_EQ(scene.arena().used_bytes(), 0u);
}

Tensor some_video(std::int64_t frames, std::int64_t height, std::int64_t width) {
  Tensor video = random_normal(4, {3, frames, height, width});
  for (float& v : video.values<float>()) v = std::clamp(v / 2, -1.0f, 1.0f);
  return video;
}

TEST(WanVae, TiedWeightsEqualTheDirectComputation) {
  const RandomWeights weights = wan_weights(2, 2, 1, 7);
  for (const std::int64_t frames : {1, 5, 13})
    compare_with_direct(*weights.store(), some_video(frames, 16, 32));
}

TEST(WanVae, OtherSizesEqualTheDirectComputation) {
  compare_with_direct(*wan_weights(4, 2, 2, 8).store(), some_video(9, 32, 16));
}

TEST(GoldenWanVae, EncodeAndDecodeEqualTheDirectComputation) {
  const auto file = golden_model("vae") / "Wan2.2_VAE.pth";
  if (!std::filesystem::exists(file)) GTEST_SKIP() << "golden model missing: " << file;
  compare_with_direct(*open_checkpoint(file), some_video(9, 16, 32));
}

TEST(WanVae, PixelsAreTheRoundedVideo) {
  DecoderScene scene;
  const RandomWeights weights = wan_weights(2, 2, 1, 9);
  const auto store = weights.store();
  const WanDecoder decoder(WeightLoader(scene.ops(), *store, DType::f32));
  const Tensor latent = random_normal(2, {48, 3, 1, 2});
  EXPECT_EQ(rounded_frames(decoder, scene.ops(), latent), 9);
}

/// Scratch memory does not grow with the clip.
TEST(WanVae, MemoryFollowsTheChunk) {
  const RandomWeights weights = wan_weights(2, 2, 1, 10);
  const auto store = weights.store();
  const auto peak = [&](std::int64_t latents) {
    DecoderScene scene;
    const WeightLoader loader(scene.ops(), *store, DType::f32);
    const WanEncoder encoder(loader);
    const WanDecoder decoder(loader);
    Arena counting = Arena::counting({});
    scene.ops().use_arena(counting);
    encoder.encode(scene.ops(), Tensor::zeros(DType::f32, {3, 4 * latents - 3, 16, 32}));
    decoder.decode(scene.ops(), Tensor::zeros(DType::f32, {48, latents, 1, 2}),
                   [](const Tensor&) { FAIL(); });
    return counting.peak_bytes();
  };
  // The history moves about in the arena, which costs a little.
  EXPECT_LE(static_cast<double>(peak(60)), 1.1 * static_cast<double>(peak(12)));
}

TEST(WanVae, RefusesBadInput) {
  DecoderScene scene;
  const RandomWeights weights = wan_weights(2, 2, 1, 11);
  const auto store = weights.store();
  const WeightLoader loader(scene.ops(), *store, DType::f32);
  const WanEncoder encoder(loader);
  const WanDecoder decoder(loader);
  expect_error(
      [&] {
        encoder.encode(scene.ops(), Tensor::zeros(DType::f32, {3, 4, 16, 16}));
      },
      "video encoder");
  expect_error(
      [&] {
        encoder.encode(scene.ops(), Tensor::zeros(DType::f32, {3, 5, 16, 24}));
      },
      "multiples of 16");
  expect_error(
      [&] {
        encoder.encode(scene.ops(), Tensor::zeros(DType::f32, {3, 0, 16, 16}));
      },
      "video encoder");
  expect_error(
      [&] {
        decoder.decode_f32(scene.ops(), Tensor::zeros(DType::f32, {47, 1, 1, 1}));
      },
      "[48,T,H,W]");

  NamedTensors incomplete;
  for (const auto& [name, tensor] : weights.tensors())
    if (name != "encoder.middle.1.proj.bias") incomplete.emplace_back(name, tensor);
  const auto broken = tensor_store_of("broken.pth", incomplete);
  expect_error([&] { WanEncoder(WeightLoader(scene.ops(), *broken, DType::f32)); },
               "encoder.middle.1.proj.bias");
  const auto empty = tensor_store_of("empty.pth", {});
  expect_error([&] { WanEncoder(WeightLoader(scene.ops(), *empty, DType::f32)); }, "encoder.conv1.weight");
  expect_error([&] { WanDecoder(WeightLoader(scene.ops(), *empty, DType::f32)); }, "empty.pth");
}

}  // namespace
}  // namespace magi
