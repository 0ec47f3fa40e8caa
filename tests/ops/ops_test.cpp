// SPDX-License-Identifier: Apache-2.0
// What all operations share: costs for an observer, and dry runs.
#include <gtest/gtest.h>

#include "ops_testing.h"

namespace magi::testing {
namespace {

/// A few operations whose results live and die as in a layer; returns the arena's peak.
std::size_t layer_peak(Arena& arena, Ops& ops, const LinearWeight& qkv, const LinearWeight& up) {
  arena.reset_peak();
  const std::vector<RowRange> samples{{0, 100}};
  const Tensor x = arena.alloc(DType::f32, {100, 64});
  if (!arena.counts_only()) std::memset(const_cast<void*>(x.raw()), 0, x.bytes());
  const Tensor y = ops.attention(ops.linear(x, qkv), samples, {2, 2, 32, 0, false, {}, {}});
  const Tensor z = ops.linear(y, up, Epilogue::swiglu7);
  EXPECT_EQ(z.shape(), Shape({100, 50}));
  return arena.peak_bytes();
}

TEST(Ops, ADryRunKnowsThePeakWithoutComputing) {
  Arena arena = Arena::on_host(std::size_t{1} << 26), counting = Arena::counting({});
  const auto ops = make_cpu_ops(arena), dry = make_cpu_ops(counting);
  const LinearWeight qkv = ops->pack_linear(random_tensor(DType::f32, {192, 64}, 1), 1, DType::f32);
  const LinearWeight up = ops->pack_linear(random_tensor(DType::f32, {100, 64}, 2), 1, DType::f32);
  EXPECT_EQ(layer_peak(counting, *dry, qkv, up), layer_peak(arena, *ops, qkv, up));
  EXPECT_EQ(arena.used_bytes(), 0u);
}

TEST(Ops, AnObserverSeesEveryOperationsCost) {
  struct Log final : OpObserver {
    std::vector<std::string> events;
    double flops = 0;
    void begin(const OpCost& cost) override {
      events.push_back("begin " + std::string(cost.name));
      flops += cost.flops;
      EXPECT_GT(cost.bytes, 0);
    }
    void end() override { events.push_back("end"); }
  } log;
  Arena arena = Arena::on_host(std::size_t{1} << 26);
  const auto ops = make_cpu_ops(arena);
  const LinearWeight w = ops->pack_linear(random_tensor(DType::f32, {6, 16}, 1), 1, DType::f32);
  ops->observe(&log);
  const Tensor y = ops->linear(random_tensor(DType::f32, {5, 16}, 2), w);
  ops->add(y, y);
  ops->observe(nullptr);
  ops->add(y, y);
  EXPECT_EQ(log.events, (std::vector<std::string>{"begin linear", "end", "begin add", "end"}));
  EXPECT_EQ(log.flops, 2 * 5 * 16 * 6 + 5 * 6);
}

}  // namespace
}  // namespace magi::testing
