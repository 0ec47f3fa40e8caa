// SPDX-License-Identifier: Apache-2.0
// The decoders' and the DeltaNet's operations on the GPU against the CPU's.
#ifdef MAGI2_CUDA
#include "ops/devices.h"
#include "ops/ops_testing.h"

namespace magi::testing {
namespace {

/// Both backends; the GPU's arena holds NaN before each operation.
class CudaDecoderOps : public ::testing::TestWithParam<DType> {
 protected:
  void SetUp() override {
    if (cuda_devices().empty()) GTEST_SKIP() << "no CUDA device";
    device_arena_ = make_cuda_arena(0, kArenaBytes);
    device_ = make_cuda_ops(*device_arena_);
    host_arena_.poison(true);
  }

  DType dtype() const { return GetParam(); }
  Tensor random(const Shape& shape, unsigned seed, float scale = 1.0f) const {
    return random_tensor(dtype(), shape, seed, scale);
  }

  void poison() {
    Tensor all = device_arena_->alloc(DType::u8, {kArenaBytes - 4096});
    if (nan_.numel() == 0 || !nan_.defined()) {
      nan_ = Tensor::empty(DType::u8, all.shape());
      std::memset(nan_.raw(), 0xff, nan_.bytes());
    }
    device_->copy_in(all, nan_);
  }

  /// compute(ops, to) on both, `to` moving a host tensor to the backend; twice on the GPU, with equal bytes.
  template <typename Compute>
  void expect_same(const Compute& compute, double allowed, const std::string& what) {
    const Tensor expected = compute(*host_, [](const Tensor& t) { return t; });
    const auto on_device = [&] {
      poison();
      return device_->download(compute(*device_, [&](const Tensor& t) { return device_->upload(t); }));
    };
    const Tensor actual = on_device();
    ASSERT_EQ(actual.shape(), expected.shape()) << what;
    if (expected.dtype() == DType::u8) {
      std::int64_t most = 0;
      for (std::int64_t i = 0; i < expected.numel(); ++i)
        most = std::max<std::int64_t>(
            most, std::abs(expected.data<std::uint8_t>()[i] - actual.data<std::uint8_t>()[i]));
      EXPECT_LE(most, 0) << what;
    } else {
      const double error = relative_error(actual, doubles(expected));
      EXPECT_LE(error, allowed) << what;
      worst_ = std::max(worst_, error);
    }
    EXPECT_TRUE(same_bytes(actual, on_device())) << what << ": two runs differ";
  }
  void TearDown() override { RecordProperty("worst_error", std::to_string(worst_)); }

  static constexpr std::int64_t kArenaBytes = std::int64_t{48} << 20;
  Arena host_arena_ = Arena::on_host(std::size_t{1} << 30);
  std::unique_ptr<Ops> host_ = make_cpu_ops(host_arena_);
  std::optional<Arena> device_arena_;
  std::unique_ptr<Ops> device_;
  Tensor nan_;
  double worst_ = 0;
};
INSTANTIATE_TEST_SUITE_P(Cuda, CudaDecoderOps, ::testing::Values(DType::f32, DType::bf16),
                         [](const auto& info) { return std::string(name_of(info.param)); });

struct ConvCase {
  std::array<std::int64_t, 3> size;
  std::int64_t in, out;
  Shape kernel;
  ConvOptions options;
  bool depthwise = false, transposed = false, bias = true;
};

class CudaConv : public CudaDecoderOps {
 protected:
  void expect_conv(const ConvCase& c) {
    Shape shape = c.transposed ? Shape{c.in, c.out} : Shape{c.out, c.depthwise ? 1 : c.in};
    shape.insert(shape.end(), c.kernel.begin(), c.kernel.end());
    const Tensor x = random({c.size[0], c.size[1], c.size[2], c.in}, ++seed_),
                 weight = random(shape, ++seed_);
    const Tensor bias = c.bias ? random_tensor(DType::f32, {c.out}, ++seed_) : Tensor();
    expect_same(
        [&](Ops& ops, const auto& to) {
          return ops.conv(to(x), ops.pack_conv(weight, bias, c.depthwise, c.transposed, dtype()), c.options);
        },
        dtype() == DType::bf16 ? 3e-3 : 1e-6,
        to_string({c.size[0], c.size[1], c.size[2], c.in}) + " kernel " + to_string(shape));
  }
  unsigned seed_ = 100;
};
INSTANTIATE_TEST_SUITE_P(Cuda, CudaConv, ::testing::Values(DType::f32, DType::bf16),
                         [](const auto& info) { return std::string(name_of(info.param)); });

ConvOptions padded(std::array<std::int64_t, 3> front, std::array<std::int64_t, 3> back) {
  return {.pad_front = front, .pad_back = back};
}

TEST_P(CudaConv, ThreeAxes) {
  expect_conv({{3, 9, 11}, 5, 7, {3, 3, 3}, padded({1, 1, 1}, {1, 1, 1})});
  expect_conv({{4, 8, 8}, 33, 70, {3, 3, 3}, padded({2, 1, 1}, {0, 1, 1})});
  expect_conv({{5, 2, 3}, 6, 4, {3, 1, 1}, {.stride = {2, 1, 1}}});
  expect_conv({{1, 1, 1}, 6, 4, {1, 1, 1}, {}});
  expect_conv({{1, 1, 1}, 8, 8, {1, 1, 1}, {}, false, false, false});
}

/// Input channels in eights: the Hopper kernel in bf16, each of its tile shapes, with tiles that hang over.
TEST_P(CudaConv, BoxesOfCells) {
  expect_conv({{5, 17, 23}, 48, 512, {3, 3, 3}, padded({0, 1, 1}, {0, 1, 1})});
  expect_conv({{4, 12, 20}, 64, 64, {3, 3, 3}, padded({1, 1, 1}, {1, 1, 1})});
  expect_conv({{4, 12, 20}, 128, 128, {3, 3, 3}, padded({0, 1, 1}, {0, 1, 1})});
  expect_conv({{3, 10, 10}, 256, 256, {3, 3, 3}, padded({0, 1, 1}, {0, 1, 1})});
  expect_conv({{3, 20, 30}, 64, 12, {3, 3, 3}, padded({0, 1, 1}, {0, 1, 1})});
  expect_conv({{2, 33, 65}, 72, 200, {3, 3}, padded({0, 1, 1}, {0, 1, 1})});
  expect_conv({{9, 6, 7}, 64, 130, {3, 1, 1}, padded({2, 0, 0}, {0, 0, 0})});
  expect_conv({{3, 40, 41}, 128, 64, {1, 1, 1}, {}});
  expect_conv({{1, 1, 1000}, 128, 129, {7}, padded({0, 0, 3}, {0, 0, 3})});
  expect_conv({{1, 1, 1}, 64, 256, {3, 3, 3}, padded({1, 1, 1}, {1, 1, 1})});
  expect_conv({{40, 24, 40}, 64, 64, {3, 3, 3}, padded({1, 1, 1}, {1, 1, 1})});  // more tiles than blocks
}

TEST_P(CudaConv, StrideAndDilation) {
  expect_conv({{2, 8, 6}, 3, 5, {3, 3}, {.stride = {1, 2, 2}, .pad_back = {0, 1, 1}}});
  expect_conv({{3, 34, 40}, 160, 160, {3, 3}, {.stride = {1, 2, 2}, .pad_back = {0, 1, 1}}});
  expect_conv(
      {{1, 7, 9}, 3, 5, {2, 3}, {.stride = {1, 3, 2}, .dilation = {1, 2, 2}, .pad_front = {0, 0, 3}}});
  for (const std::int64_t dilation : {1, 3, 9})
    for (const std::int64_t channels : {6, 128})
      expect_conv({{1, 1, 283},
                   channels,
                   channels + 1,
                   {7},
                   {.dilation = {1, 1, dilation},
                    .pad_front = {0, 0, 3 * dilation},
                    .pad_back = {0, 0, 3 * dilation}}});
}

TEST_P(CudaConv, Depthwise) {
  expect_conv({{3, 5, 6}, 19, 19, {3, 3, 3}, padded({0, 1, 1}, {0, 1, 1}), true});
  expect_conv({{2, 5, 6}, 8, 8, {1, 1, 1}, {}, true});
}

TEST_P(CudaConv, Transposed) {
  const auto pads = [](std::int64_t stride, std::int64_t pad, std::int64_t back) {
    return ConvOptions{.stride = {1, 1, stride}, .pad_front = {0, 0, pad}, .pad_back = {0, 0, back}};
  };
  expect_conv({{1, 1, 9}, 6, 4, {4}, pads(2, 1, 1), false, true});
  expect_conv({{1, 1, 150}, 64, 40, {16}, pads(8, 4, 4), false, true});
  expect_conv({{2, 3, 70}, 6, 34, {5}, pads(3, 0, 2), false, true});
  expect_conv({{1, 1, 5}, 6, 4, {2}, pads(3, 0, 0), false, true});  // gaps get the bias
  expect_conv({{1, 1, 5}, 6, 4, {7}, pads(1, 6, 0), false, true});
  ConvOptions dilated = pads(2, 1, 0);
  dilated.dilation = {1, 1, 3};
  expect_conv({{1, 1, 90}, 2, 3, {4}, dilated, false, true});
}

TEST_P(CudaConv, FramesAreIndependent) {
  for (const std::int64_t channels : {10, 64}) {
    const Tensor x = device_->upload(random({9, 14, 17, channels}, 3));
    const ConvWeight w = device_->pack_conv(random({96, channels, 3, 3, 3}, 4), {}, false, false, dtype());
    const Tensor all = device_->download(device_->conv(x, w, {}).rows(4, 2));
    EXPECT_TRUE(same_bytes(all, device_->download(device_->conv(x.rows(4, 4), w, {})))) << channels;
  }
}

TEST_P(CudaDecoderOps, MovesElements) {
  for (const std::int64_t c : {3, 8, 12, 64}) {
    const Tensor x = random({3, 5, 6, 2 * c}, 1);
    for (const auto& [front, back] : {std::pair{0, 0}, {1, 1}, {2, 3}})
      expect_same([&](Ops& ops, const auto& to) { return ops.replicate_time(to(x), front, back); }, 0,
                  "replicate");
    expect_same([&](Ops& ops, const auto& to) { return ops.upsample_nearest(to(x)); }, 0, "upsample");
    expect_same([&](Ops& ops, const auto& to) { return ops.interleave_time(to(x)); }, 0, "interleave");
  }
  const Tensor patches = random({3, 5, 7, 12}, 2), grid = random({2, 6, 10, 3}, 3),
               one = random({1, 1, 1, 18}, 4);
  expect_same([&](Ops& ops, const auto& to) { return ops.unpatchify(to(patches), 2); }, 0, "unpatchify");
  expect_same([&](Ops& ops, const auto& to) { return ops.patchify(to(grid), 2); }, 0, "patchify");
  expect_same([&](Ops& ops, const auto& to) { return ops.unpatchify(to(one), 3); }, 0, "unpatchify");
}

TEST_P(CudaDecoderOps, ElementsAlone) {
  const double allowed = dtype() == DType::bf16 ? 1e-3 : 1e-6;
  for (const std::int64_t c : {2, 7, 64}) {
    Tensor x = random({1, 3, 37, c}, 5, 1.5f);
    const Tensor alpha = random_tensor(DType::f32, {c}, 6), beta = random_tensor(DType::f32, {c}, 7);
    expect_same([&](Ops& ops, const auto& to) { return ops.snake(to(x), to(alpha), to(beta)); }, allowed,
                "snake");
    expect_same([&](Ops& ops, const auto& to) { return ops.tanh(to(x)); }, allowed, "tanh");
    expect_same([&](Ops& ops, const auto& to) { return ops.to_pixels(to(x)); }, 0, "to_pixels");
  }
}

TEST_P(CudaDecoderOps, ChannelNorms) {
  const double allowed = dtype() == DType::bf16 ? 1e-3 : 1e-6;
  for (const std::int64_t c : {1, 5, 24, 64, 100, 160, 512, 1030}) {
    const Tensor x = random({2, 3, 7, c}, 8), gamma = random_tensor(DType::f32, {c}, 9);
    for (const Activation activation : {Activation::none, Activation::relu, Activation::silu})
      for (const auto kind : {ChannelNorm::Kind::rms, ChannelNorm::Kind::l2})
        expect_same(
            [&](Ops& ops, const auto& to) {
              ChannelNorm norm{.kind = kind, .eps = 1e-6f, .gamma = {}, .activation = activation};
              if (kind == ChannelNorm::Kind::l2) norm.gamma = to(gamma);
              return ops.channel_norm(to(x), norm);
            },
            allowed, "channel_norm of " + std::to_string(c));
  }
}

TEST_P(CudaDecoderOps, GatedNormAndCausalConvolution) {
  const double allowed = dtype() == DType::bf16 ? 1e-3 : 1e-6;
  for (const std::int64_t rows : {1, 3, 70})
    for (const std::int64_t d : {9, 16, 128}) {
      const Tensor both = random({rows, 3 * d + 2 * 3 * d}, 10), weight = random_tensor(DType::f32, {d}, 11);
      const Tensor taps = random_tensor(DType::f32, {3 * d, 4}, 12);
      expect_same(
          [&](Ops& ops, const auto& to) {
            const Tensor t = to(both);
            return ops.gated_rms_norm(t.columns(0, 3 * d), t.columns(3 * d, 3 * d), to(weight), 1e-6f);
          },
          allowed, "gated_rms_norm");
      expect_same([&](Ops& ops,
                      const auto& to) { return ops.causal_conv_silu(to(both).columns(d, 3 * d), to(taps)); },
                  allowed, "causal_conv_silu");
    }
}

struct DeltaInput {
  std::int64_t key_heads, value_heads, key_dim, value_dim;
  Tensor qkv, decay, beta, a_log, dt_bias;

  DeltaInput(DType dtype, DType gates, std::int64_t rows, std::array<std::int64_t, 4> sizes)
      : key_heads(sizes[0]), value_heads(sizes[1]), key_dim(sizes[2]), value_dim(sizes[3]) {
    qkv = random_tensor(dtype, {rows, 2 * key_heads * key_dim + value_heads * value_dim}, 21);
    decay = random_tensor(gates, {rows, value_heads}, 22);
    beta = random_tensor(gates, {rows, value_heads}, 23);
    a_log = random_tensor(DType::f32, {value_heads}, 24);
    dt_bias = random_tensor(DType::f32, {value_heads}, 25);
  }
  template <typename To>
  Tensor run(Ops& ops, const To& to) const {
    return ops.gated_delta_rule(to(qkv), to(decay), to(beta), to(a_log), to(dt_bias), key_heads, value_heads,
                                key_dim, value_dim);
  }
};

TEST_P(CudaDecoderOps, GatedDeltaRule) {
  const double allowed = dtype() == DType::bf16 ? 2e-3 : 3e-6;
  for (const std::int64_t rows : {1, 5, 63, 64, 65, 200})
    for (const auto& sizes :
         {std::array<std::int64_t, 4>{2, 6, 16, 16}, {1, 2, 20, 9}, {3, 3, 8, 70}, {1, 2, 128, 128}}) {
      const DeltaInput in(dtype(), rows % 2 == 0 ? DType::f32 : dtype(), rows, sizes);
      expect_same([&](Ops& ops, const auto& to) { return in.run(ops, to); }, allowed,
                  std::to_string(rows) + " rows, key dim " + std::to_string(sizes[2]));
    }
  const DeltaInput longer(dtype(), DType::f32, 2500, {1, 3, 128, 128});  // two groups of chunks
  expect_same([&](Ops& ops, const auto& to) { return longer.run(ops, to); }, allowed, "2500 rows");
}

TEST_P(CudaDecoderOps, AnyStrengthOfDecay) {
  DeltaInput in(dtype(), DType::f32, 200, {1, 6, 16, 16});
  const float strengths[] = {-30.0f, -6.0f, -4.0f, 3.0f, 6.0f, 100.0f};
  std::copy(std::begin(strengths), std::end(strengths), in.a_log.data<float>());
  expect_same([&](Ops& ops, const auto& to) { return in.run(ops, to); }, dtype() == DType::bf16 ? 2e-3 : 3e-6,
              "decay");
}

}  // namespace
}  // namespace magi::testing
#endif
