// SPDX-License-Identifier: Apache-2.0
// Layers of the release's size on the GPU, which no golden model has: against float64, beside plain bf16
// arithmetic.
#include <gtest/gtest.h>

#include <random>

#include "bench/backend.h"
#include "bench/random_store.h"
#include "layer_reference.h"
#include "ops/devices.h"
#include "sample/noise.h"

namespace magi {
namespace {

using layer_reference::Row;
using layer_reference::Rows;

/// A preview of one layer with the release's widths; small adapters.
PreviewConfig one_layer(bool experts) {
  PreviewConfig config;
  config.layers = 1;
  config.channels.text = 64;
  config.per_modality_layers.clear();
  config.moe_layers.clear();
  (experts ? config.moe_layers : config.per_modality_layers).push_back(0);
  return config;
}

Rows rows_of(const Tensor& t) {
  const Tensor values = t.to(DType::f32);
  Rows rows;
  for (std::int64_t i = 0; i < t.dim(0); ++i)
    rows.emplace_back(values.data<float>() + i * t.dim(1), values.data<float>() + (i + 1) * t.dim(1));
  return rows;
}

double relative_error(const Rows& got, const Rows& want) {
  double difference = 0, size = 0;
  for (std::size_t n = 0; n < want.size(); ++n)
    for (std::size_t i = 0; i < want[n].size(); ++i) {
      difference += (got[n][i] - want[n][i]) * (got[n][i] - want[n][i]);
      size += want[n][i] * want[n][i];
    }
  return std::sqrt(difference / size);
}

class ReleaseLayer : public ::testing::TestWithParam<bool> {};

TEST_P(ReleaseLayer, IsNoFurtherFromFloat64ThanPlainBf16) {
  if (cuda_devices().empty()) GTEST_SKIP() << "no CUDA device";
  const PreviewConfig config = one_layer(GetParam());
  Backend backend({Device::Kind::cuda, 0});
  Ops& ops = backend.ops();
  const RandomStore store;
  const auto model = load_preview(ops, store, config, DType::bf16);
  backend.take_scratch();

  NoiseGenerator noise(7);
  const LatentGrid grid{3, 10, 12};
  PackedSequence sequence = pack(grid, 41, {{noise.randn({37, config.channels.text}), {}}});
  const Tensor rope = rotary_table(sequence.coordinates, model->adapters().rotary_bands);
  PreviewRun run(ops, *model, sequence, DType::bf16);
  std::map<std::string, Tensor> probes;
  run.velocity(noise.randn({config.channels.video, grid.t, grid.h, grid.w}),
               noise.randn({41, config.channels.audio}), 500,
               [&](std::string_view name, const Tensor& t) { probes[std::string(name)] = ops.download(t); });

  // The layer's input: the embedding with the time features over its first channels.
  Rows streams = rows_of(probes.at("embed"));
  for (const Segment& s : sequence.segments) {
    const std::vector<float> features = time_features(s.noised ? 0.5f : 0.0f, config.time_channels);
    for (std::int64_t i = 0; i < s.rows; ++i)
      for (std::size_t k = 0; k < features.size(); ++k)
        streams[static_cast<std::size_t>(s.first + i)][k] =
            static_cast<float>(static_cast<bf16>(features[k]));
  }
  std::vector<std::int64_t> chosen(static_cast<std::size_t>(sequence.rows()));
  std::iota(chosen.begin(), chosen.end(), 0);
  std::shuffle(chosen.begin(), chosen.end(), std::minstd_rand(5));
  chosen.resize(64);

  // Near ties of the router fall either way and would hide the arithmetic: the experts are the GPU's in all
  // three.
  const Tensor choices = GetParam() ? probes.at("routing_index") : Tensor();
  layer_reference::Layer exact(config, store, sequence.segments, rope, false, choices),
      plain(config, store, sequence.segments, rope, true, choices);
  const Rows want = exact(streams, chosen), rounded = plain(streams, chosen),
             all = rows_of(probes.at("layer_0_out"));
  Rows got;
  for (const std::int64_t row : chosen) got.push_back(all[static_cast<std::size_t>(row)]);
  const double ours = relative_error(got, want), theirs = relative_error(rounded, want);
  std::printf("64 of %ld rows, relative error from float64: %.5f; plain bf16: %.5f\n",
              static_cast<long>(sequence.rows()), ours, theirs);
  EXPECT_LE(ours, theirs);
  if (GetParam()) {
    const auto made = static_cast<std::int64_t>(chosen.size()) * config.moe_heads * config.top_k;
    std::printf("of %ld choices float64 makes %ld others\n", static_cast<long>(made),
                static_cast<long>(exact.other_choices()));
    EXPECT_LE(exact.other_choices(), made / 50);
  }
}

INSTANTIATE_TEST_SUITE_P(Gpu, ReleaseLayer, ::testing::Values(true, false),
                         [](const auto& info) { return info.param ? "experts" : "dense"; });

}  // namespace
}  // namespace magi
