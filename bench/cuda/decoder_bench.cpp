// SPDX-License-Identifier: Apache-2.0
// Times the decoders' and the text encoder's operations at the release's sizes, and the turbo decoder on one
// window of a 1080p clip, with random weights, on device 0: decoder_bench. Medians; a time covers `repeats`
// enqueued calls and the wait for the last.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <random>

#include "model/turbo_decoder.h"
#include "model/weight_loader.h"
#include "ops/devices.h"

namespace magi {
namespace {

/// Values of a short random run, repeated: large tensors are made quickly.
Tensor random_tensor(DType dtype, const Shape& shape, float scale) {
  static const std::vector<float> run = [] {
    std::minstd_rand engine(1);
    std::normal_distribution<float> normal;
    std::vector<float> values(1 << 20);
    for (float& v : values) v = normal(engine);
    return values;
  }();
  Tensor t = Tensor::empty(DType::f32, shape);
  std::size_t i = 0;
  for (float& v : t.values<float>()) v = scale * run[i++ % (run.size() - 7)];
  return t.to(dtype);
}

class Bench {
 public:
  Bench() : arena_(make_cuda_arena(0, std::size_t{90} << 30)), ops_(make_cuda_ops(arena_)) {}
  Ops& ops() { return *ops_; }

  /// [t,h,w,c] on the device; frames are equal.
  Tensor frames(DType dtype, const Shape& shape) {
    const Tensor one = ops_->upload(random_tensor(dtype, {1, shape[1], shape[2], shape[3]}, 1.0f));
    return ops_->replicate_time(one, 0, shape[0] - 1);
  }

  /// Median seconds of a call.
  template <typename Call>
  double seconds(const Call& call, int repeats) {
    call();
    wait();
    std::vector<double> times;
    for (int i = 0; i < 5; ++i) {
      const auto start = std::chrono::steady_clock::now();
      for (int k = 0; k < repeats; ++k) call();
      wait();
      times.push_back(std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count() /
                      repeats);
    }
    std::sort(times.begin(), times.end());
    return times[times.size() / 2];
  }

  void conv(const char* what, DType dtype, const Shape& x_shape, std::int64_t out, const Shape& kernel,
            const ConvOptions& options, bool transposed = false) {
    const Tensor x = frames(dtype, x_shape);
    Shape shape = transposed ? Shape{x_shape[3], out} : Shape{out, x_shape[3]};
    shape.insert(shape.end(), kernel.begin(), kernel.end());
    const ConvWeight w = ops_->pack_conv(random_tensor(dtype, shape, 0.03f),
                                         random_tensor(DType::f32, {out}, 0.1f), false, transposed, dtype);
    const std::int64_t taps = numel(kernel);
    const Tensor y = ops_->conv(x, w, options);
    const double cells = static_cast<double>(transposed ? x.numel() / x_shape[3] : y.numel() / out);
    const double flops = 2.0 * cells * static_cast<double>(taps * x_shape[3] * out);
    const double s = seconds([&] { ops_->conv(x, w, options); }, 3);
    std::printf("%-44s %8.3f ms  %7.1f TFLOP/s\n", what, s * 1e3, flops / s * 1e-12);
  }

  template <typename Call>
  void bytes(const char* what, double bytes, const Call& call) {
    const double s = seconds(call, 5);
    std::printf("%-44s %8.3f ms  %7.0f GB/s\n", what, s * 1e3, bytes / s * 1e-9);
  }

 private:
  void wait() { ops_->download(one_); }

  Arena arena_;
  std::unique_ptr<Ops> ops_;
  Tensor one_ = ops_->upload(random_tensor(DType::f32, {1}, 1.0f));
};

/// Random weights of any model that asks for them.
class RandomStore final : public TensorStore {
 public:
  RandomStore() : TensorStore("random weights") {}
  Tensor get(const std::string& name, const Shape& shape) const override {
    const bool bias = name.ends_with(".bias");
    const double fan_in = static_cast<double>(numel(shape)) / static_cast<double>(shape[0]);
    return random_tensor(DType::bf16, shape, bias ? 0.0f : static_cast<float>(std::sqrt(1.5 / fan_in)));
  }

 protected:
  Tensor read(const std::string& name, const TensorInfo&) const override { fail("{} is not read", name); }
};

void convolutions(Bench& bench) {
  const ConvOptions same{.pad_front = {0, 1, 1}, .pad_back = {0, 1, 1}};
  const Shape cube{3, 3, 3};
  bench.conv("conv 3³ 48→512, 9×68×120", DType::bf16, {11, 68, 120, 48}, 512, cube, same);
  bench.conv("conv 3³ 512→512, 9×68×120", DType::bf16, {11, 68, 120, 512}, 512, cube, same);
  bench.conv("conv 3³ 512→512, 18×136×240", DType::bf16, {20, 136, 240, 512}, 512, cube, same);
  bench.conv("conv 3² 512→512, 18×136×240", DType::bf16, {18, 136, 240, 512}, 512, {3, 3}, same);
  bench.conv("conv 3³ 512→256, 18×136×240", DType::bf16, {20, 136, 240, 512}, 256, cube, same);
  bench.conv("conv 3³ 256→256, 36×272×480", DType::bf16, {38, 272, 480, 256}, 256, cube, same);
  bench.conv("conv 3³ 256→128, 36×272×480", DType::bf16, {38, 272, 480, 256}, 128, cube, same);
  bench.conv("conv 3³ 128→128, 36×544×960", DType::bf16, {38, 544, 960, 128}, 128, cube, same);
  bench.conv("conv 1³ 128→64, 36×544×960", DType::bf16, {36, 544, 960, 128}, 64, {1, 1, 1}, {});
  bench.conv("conv 3³ 128→64, 36×544×960", DType::bf16, {38, 544, 960, 128}, 64, cube, same);
  bench.conv("conv 3³ 64→64, 36×544×960", DType::bf16, {38, 544, 960, 64}, 64, cube, same);
  bench.conv("conv 3³ 64→12, 36×544×960", DType::bf16, {38, 544, 960, 64}, 12, cube, same);
  ConvOptions strided = same;
  strided.stride = {1, 2, 2};
  bench.conv("portable: 3² stride 2 512→512, 18×136×240", DType::bf16, {18, 136, 240, 512}, 512, {3, 3},
             strided);
  bench.conv("f32 3³ 256→256, 4×136×240", DType::f32, {6, 136, 240, 256}, 256, cube, same);
  bench.conv("f32 7 128→128, 512000, dilation 9", DType::f32, {1, 1, 512000, 128}, 128, {7},
             {.dilation = {1, 1, 9}, .pad_front = {0, 0, 27}, .pad_back = {0, 0, 27}});
  bench.conv("f32 transposed 16 1024→512, 2000, stride 8", DType::f32, {1, 1, 2000, 1024}, 512, {16},
             {.stride = {1, 1, 8}, .pad_front = {0, 0, 4}, .pad_back = {0, 0, 4}}, true);
}

void movements(Bench& bench) {
  Ops& ops = bench.ops();
  const Tensor x = bench.frames(DType::bf16, {36, 544, 960, 128}),
               small = bench.frames(DType::bf16, {36, 272, 480, 128});
  const auto size = static_cast<double>(x.bytes());
  const ChannelNorm norm{.gamma = {}, .activation = Activation::silu};
  bench.bytes("norm, SiLU 36×544×960×128", 2 * size, [&] { ops.channel_norm(x, norm); });
  const Tensor narrow = bench.frames(DType::bf16, {36, 544, 960, 64});
  bench.bytes("norm, SiLU 36×544×960×64", size, [&] { ops.channel_norm(narrow, norm); });
  bench.bytes("replicate_time 36×544×960×128", 2 * size * 37 / 36, [&] { ops.replicate_time(x, 1, 1); });
  bench.bytes("upsample_nearest 36×272×480×128", 1.25 * size, [&] { ops.upsample_nearest(small); });
  bench.bytes("interleave_time 36×544×960×128", 2 * size, [&] { ops.interleave_time(x); });
  const Tensor patches = bench.frames(DType::bf16, {36, 544, 960, 12});
  bench.bytes("unpatchify 36×544×960×12", 2 * static_cast<double>(patches.bytes()),
              [&] { ops.unpatchify(patches, 2); });
  bench.bytes("to_pixels 36×544×960×12", 1.5 * static_cast<double>(patches.bytes()),
              [&] { ops.to_pixels(patches); });
  const Tensor samples = bench.frames(DType::f32, {1, 1, 512000, 128});
  const Tensor alpha = ops.upload(random_tensor(DType::f32, {128}, 0.3f));
  bench.bytes("snake f32 512000×128", 2 * static_cast<double>(samples.bytes()),
              [&] { ops.snake(samples, alpha, alpha); });
}

void delta_net(Bench& bench) {
  Ops& ops = bench.ops();
  for (const std::int64_t rows : {2500, 7000}) {
    const std::int64_t key_heads = 16, value_heads = 48, d = 128, width = (2 * key_heads + value_heads) * d;
    const Tensor qkv = ops.upload(random_tensor(DType::bf16, {rows, width}, 1.0f));
    const Tensor gates = ops.upload(random_tensor(DType::f32, {rows, value_heads}, 1.0f));
    const Tensor a_log = ops.upload(random_tensor(DType::f32, {value_heads}, 1.0f));
    const Tensor taps = ops.upload(random_tensor(DType::f32, {width, 4}, 0.3f));
    const Tensor values = ops.upload(random_tensor(DType::bf16, {rows, value_heads * d}, 1.0f));
    const Tensor weight = ops.upload(random_tensor(DType::f32, {d}, 1.0f));
    const auto time = [&](const char* what, const auto& call) {
      std::printf("%-30s %5lld rows %12.3f ms\n", what, static_cast<long long>(rows),
                  bench.seconds(call, 5) * 1e3);
    };
    time("gated_delta_rule",
         [&] { ops.gated_delta_rule(qkv, gates, gates, a_log, a_log, key_heads, value_heads, d, d); });
    time("causal_conv_silu", [&] { ops.causal_conv_silu(qkv, taps); });
    time("gated_rms_norm", [&] { ops.gated_rms_norm(values, values, weight, 1e-6f); });
  }
}

void turbo_window(Bench& bench) {
  TurboConfig config;
  config.mid_resnets = 3;
  config.blocks = {{512, 3, true, true, false},
                   {256, 2, true, true, false},
                   {128, 2, true, false, false},
                   {64, 2, false, false, false}};
  config.first_chunk = config.step = 7;
  const RandomStore store;
  const TurboDecoder decoder(WeightLoader(bench.ops(), store, DType::bf16), config);
  const Tensor x = bench.frames(DType::bf16, {9, 68, 120, 48});
  bench.ops().arena().reset_peak();
  const double s = bench.seconds([&] { decoder.decode_window(bench.ops(), x, false); }, 1);
  std::printf("turbo decoder, 9 latents of 68×120 (of 63 in 10 s: 9 windows): %.3f s, arena %.1f GiB\n", s,
              static_cast<double>(bench.ops().arena().peak_bytes()) / (1 << 30));
}

}  // namespace
}  // namespace magi

int main() {
  magi::Bench bench;
  for (const auto part : {magi::delta_net, magi::convolutions, magi::movements, magi::turbo_window}) {
    try {
      part(bench);
    } catch (const magi::Error& error) {
      std::printf("%s\n", error.what());
    }
    std::fflush(stdout);
  }
}
