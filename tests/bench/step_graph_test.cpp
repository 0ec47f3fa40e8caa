// SPDX-License-Identifier: Apache-2.0
// A step of the release's preview on the GPU waits for nothing, allocates nothing and gives the same bytes
// every time.
#include <gtest/gtest.h>

#include <chrono>
#include <nlohmann/json.hpp>
#include <optional>

#include "bench/backend.h"
#include "bench/random_store.h"
#include "bench/synthetic.h"
#include "io/config.h"
#include "ops/devices.h"
#include "sample/noise.h"

namespace magi {
namespace {

bool same_bytes(const Tensor& a, const Tensor& b) {
  return a.bytes() == b.bytes() && std::equal(static_cast<const std::byte*>(a.raw()),
                                              static_cast<const std::byte*>(a.raw()) + a.bytes(),
                                              static_cast<const std::byte*>(b.raw()));
}

TEST(StepGraph, RecordsAndReplaysA272pStep) {
  if (cuda_devices().empty()) GTEST_SKIP() << "no CUDA device";
  const PreviewConfig config = PreviewConfig::from(ConfigNode(nlohmann::json::object(), "the release's"));
  Backend backend({Device::Kind::cuda, 0});
  Ops& ops = backend.ops();
  const auto model = synthetic_preview(ops, RandomStore(), config, DType::bf16, {});
  backend.take_scratch();
  NoiseGenerator noise(3);
  const LatentGrid grid{32, 16, 28};
  const PackedSequence sequence =
      pack(grid, 250,
           {{noise.randn({429, config.channels.text}), {}}, {noise.randn({15, config.channels.text}), {}}});
  const SequenceOnDevice inputs =
      upload_sequence(ops, sequence, {0, sequence.rows()}, model->adapters().rotary_bands);
  const Tensor video = ops.upload(noise.randn({grid.cells(), config.channels.video})),
               audio = ops.upload(noise.randn({250, config.channels.audio})),
               times = ops.upload(noise.randn({2, config.time_channels}));
  std::optional<Tensor> hidden;
  const auto step = [&] {
    hidden = model->hidden_states(ops, sequence, inputs, video, audio, times, DType::bf16);
  };

  double seconds = 0;
  const auto result = [&](const std::function<void()>& run) {
    const auto start = std::chrono::steady_clock::now();
    run();
    const Tensor last = ops.download(hidden->rows(sequence.rows() - 1, 1));  // waits
    seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
    return ops.download(*hidden);
  };
  const Tensor first = result(step);
  hidden.reset();
  EXPECT_TRUE(same_bytes(first, result(step))) << "two runs differ";
  std::printf("a step: %.4f s\n", seconds);
  hidden.reset();

  const std::unique_ptr<RecordedWork> recorded = record_cuda(ops, step);
  // What the record writes goes into the same memory: NaN there shows that nothing is left of the runs
  // before.
  Tensor nan = Tensor::empty(DType::u8, {static_cast<std::int64_t>(hidden->bytes())});
  std::fill_n(nan.data<std::uint8_t>(), nan.numel(), 0xff);
  for (int i = 0; i < 3; ++i) {
    ops.copy_in(Tensor::view(hidden->raw(), DType::u8, nan.shape(), nullptr, ops.device()), nan);
    EXPECT_TRUE(same_bytes(first, result([&] { recorded->replay(); }))) << "replay " << i;
    std::printf("replayed: %.4f s\n", seconds);
  }
}

}  // namespace
}  // namespace magi
