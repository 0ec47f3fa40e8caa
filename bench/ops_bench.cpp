// SPDX-License-Identifier: Apache-2.0
// Operations at the release's sizes, in flops a second (counter "flops"), beside oneDNN's own matrix product
// on all threads. Aims: linear 70 %, attention 30 %, experts 50 % of that.
#include <benchmark/benchmark.h>

#include <dnnl.hpp>
#include <random>

#include "ops/ops.h"

namespace magi {
namespace {

constexpr std::int64_t kRows = 1024;

Tensor random_tensor(DType dtype, const Shape& shape, float scale) {
  std::minstd_rand engine(1);
  std::uniform_real_distribution<float> uniform(-scale, scale);
  Tensor t = Tensor::empty(DType::f32, shape);
  for (float& v : t.values<float>()) v = uniform(engine);
  return t.to(dtype);
}

struct Backend {
  Arena arena = Arena::on_host(std::size_t{4} << 30);
  std::unique_ptr<Ops> ops = make_cpu_ops(arena);
};

void count_flops(benchmark::State& state, double flops) {
  state.counters["flops"] = benchmark::Counter(flops, benchmark::Counter::kIsIterationInvariantRate);
}

DType dtype_of_range(std::int64_t value) {
  return value == 0 ? DType::f32 : DType::bf16;
}

/// The yardstick: one product of oneDNN over all threads, weights in its own layout, result in the inputs'
/// dtype.
void onednn_matmul(benchmark::State& state) {
  using tag = dnnl::memory::format_tag;
  const std::int64_t in = state.range(0), out = state.range(1);
  const auto type = state.range(2) == 0 ? dnnl::memory::data_type::f32 : dnnl::memory::data_type::bf16;
  const dnnl::engine engine(dnnl::engine::kind::cpu, 0);
  dnnl::stream stream(engine);
  const dnnl::memory::desc a({kRows, in}, type, tag::ab), b({in, out}, type, tag::any),
      c({kRows, out}, type, tag::ab);
  try {
#if DNNL_VERSION_MAJOR >= 3
    const dnnl::matmul::primitive_desc description(engine, a, b, c);
#else
    const dnnl::matmul::primitive_desc description(dnnl::matmul::desc(a, b, c), engine);
#endif
    dnnl::memory x(a, engine), w(description.weights_desc(), engine), y(c, engine);
    for (dnnl::memory* m : {&x, &w, &y}) {
      std::fill_n(static_cast<std::uint8_t*>(m->get_data_handle()), m->get_desc().get_size(),
                  std::uint8_t{0x3c});
    }
    dnnl::matmul product(description);
    state.SetLabel(description.impl_info_str());
    for (auto _ : state) {
      product.execute(stream, {{DNNL_ARG_SRC, x}, {DNNL_ARG_WEIGHTS, w}, {DNNL_ARG_DST, y}});
      stream.wait();
    }
    count_flops(state, 2.0 * static_cast<double>(kRows * in * out));
  } catch (const dnnl::error& error) {
    state.SkipWithError(error.what());
  }
}

void linear(benchmark::State& state) {
  const std::int64_t in = state.range(0), out = state.range(1);
  const DType dtype = dtype_of_range(state.range(2));
  const auto epilogue = static_cast<Epilogue>(state.range(3));
  Backend backend;
  const Tensor x = random_tensor(dtype, {kRows, in}, 1);
  const LinearWeight w = backend.ops->pack_linear(random_tensor(dtype, {out, in}, 0.02f), 1, dtype);
  for (auto _ : state) benchmark::DoNotOptimize(backend.ops->linear(x, w, epilogue).raw());
  count_flops(state, 2.0 * static_cast<double>(kRows * in * out));
}

void attention(benchmark::State& state) {
  const std::int64_t rows = state.range(0), heads = 6;
  const DType dtype = dtype_of_range(state.range(2));
  Backend backend;
  const AttentionOptions options{heads, heads, state.range(1), 0, false, {}, {}};
  const Tensor qkv = random_tensor(dtype, {rows, 3 * heads * options.head_dim}, 2);
  const std::vector<RowRange> samples{{0, rows}};
  for (auto _ : state) benchmark::DoNotOptimize(backend.ops->attention(qkv, samples, options).raw());
  count_flops(state, 4.0 * static_cast<double>(rows * rows * heads * options.head_dim));
}

/// The refiner's blocks of 8×4×4 cells with radius 2, 4 query heads of one kv head.
void window_attention(benchmark::State& state) {
  const auto window = WindowOptions::whole({24, 24, 24}, {8, 4, 4}, {2, 2, 2});
  const std::int64_t video = window.keys.end, rows = video + 256;
  Backend backend;
  const AttentionOptions options{4, 1, 128, 0, false, {}, {}};
  const Tensor qkv = random_tensor(dtype_of_range(state.range(0)), {rows, 6 * 128}, 2);
  double pairs = 0;
  struct Pairs : OpObserver {
    double& flops;
    explicit Pairs(double& flops) : flops(flops) {}
    void begin(const OpCost& cost) override { flops = cost.flops; }
    void end() override {}
  } observer(pairs);
  backend.ops->observe(&observer);
  const Tensor q = qkv.columns(0, 4 * 128).rows(0, video), kv = qkv.columns(4 * 128, 2 * 128);
  Tensor y = Tensor::empty(qkv.dtype(), {video, 4 * 128});
  for (auto _ : state) {
    backend.ops->window_attention(q, kv, window, options, y);
    benchmark::DoNotOptimize(y.raw());
  }
  count_flops(state, pairs);
}

/// One head's 64 experts of 256×1280 (a quarter of the release's, for time), top 6: `range(0)` rows an
/// expert.
void experts(benchmark::State& state) {
  const std::int64_t count = 64, dim = 256, hidden = 1280, top_k = 6;
  const std::int64_t rows = state.range(0) * count / top_k;
  const DType dtype = dtype_of_range(state.range(1));
  Backend backend;
  const Tensor in = random_tensor(dtype, {count, dim, hidden}, 0.1f),
               out = random_tensor(dtype, {count, hidden, dim}, 0.1f);
  const ExpertWeight w = backend.ops->pack_experts(in, in, out, 1, dtype);
  const Tensor z = random_tensor(dtype, {rows, dim}, 1);
  const Routing routing = backend.ops->route(z, random_tensor(DType::f32, {count, dim}, 0.3f),
                                             Tensor::zeros(DType::f32, {count}), 1, top_k, 1);
  for (auto _ : state) benchmark::DoNotOptimize(backend.ops->experts(z, routing, w).raw());
  count_flops(state, 6.0 * static_cast<double>(rows * top_k * dim * hidden));
}

void route(benchmark::State& state) {
  const std::int64_t heads = 12, dim = 256, experts_a_head = 256;
  Backend backend;
  const Tensor z = random_tensor(DType::bf16, {kRows, heads * dim}, 1);
  const Tensor gate = random_tensor(DType::f32, {heads * experts_a_head, dim}, 0.3f);
  const Tensor bias = Tensor::zeros(DType::f32, {heads * experts_a_head});
  for (auto _ : state)
    benchmark::DoNotOptimize(backend.ops->route(z, gate, bias, heads, 6, 4.9f).index.raw());
  count_flops(state, 2.0 * static_cast<double>(kRows * heads * dim * experts_a_head));
}

/// Seconds to bring a released matrix into the kernels' layout, as bytes a second.
void pack_linear(benchmark::State& state) {
  Backend backend;
  const Tensor weight = random_tensor(DType::bf16, {9216, 3072}, 0.02f);
  for (auto _ : state) benchmark::DoNotOptimize(backend.ops->pack_linear(weight, 1, DType::bf16).data.raw());
  state.SetBytesProcessed(state.iterations() * static_cast<std::int64_t>(weight.bytes()));
}

void pack_experts(benchmark::State& state) {
  Backend backend;
  const Tensor in = random_tensor(DType::bf16, {64, 256, 1280}, 0.1f),
               out = random_tensor(DType::bf16, {64, 1280, 256}, 1);
  for (auto _ : state)
    benchmark::DoNotOptimize(backend.ops->pack_experts(in, in, out, 1, DType::bf16).gate.raw());
  state.SetBytesProcessed(state.iterations() * static_cast<std::int64_t>(3 * in.bytes()));
}

#define MAGI2_BENCH(function) BENCHMARK(function)->UseRealTime()->Unit(benchmark::kMillisecond)
MAGI2_BENCH(onednn_matmul)
    ->ArgNames({"in", "out", "bf16"})
    ->Args({3072, 9216, 1})
    ->Args({3072, 3072, 1})
    ->Args({8192, 3072, 1})
    ->Args({3072, 9216, 0});
MAGI2_BENCH(linear)
    ->ArgNames({"in", "out", "bf16", "epilogue"})
    ->Args({3072, 9216, 1, 0})
    ->Args({3072, 3072, 1, 0})
    ->Args({8192, 3072, 1, 0})
    ->Args({3072, 16384, 1, 1})
    ->Args({3072, 24, 1, 0})
    ->Args({3072, 9216, 0, 0});
MAGI2_BENCH(attention)
    ->ArgNames({"rows", "head_dim", "bf16"})
    ->Args({4096, 128, 1})
    ->Args({4096, 128, 0})
    ->Args({4096, 256, 1})
    ->Args({300, 128, 1});
MAGI2_BENCH(window_attention)->ArgName("bf16")->Arg(1);
MAGI2_BENCH(experts)
    ->ArgNames({"rows", "bf16"})
    ->Args({200, 1})
    ->Args({500, 1})
    ->Args({20, 1})
    ->Args({200, 0});
MAGI2_BENCH(route);
MAGI2_BENCH(pack_linear);
MAGI2_BENCH(pack_experts);

}  // namespace
}  // namespace magi
