// SPDX-License-Identifier: Apache-2.0
// Checks and times the attention kernels on their own:
//   attention_bench [check|time|small]   (small: a few checks, for compute-sanitizer)
// Checks compare with fp64 on fresh random inputs, on poisoned outputs, with NaN in the rows that must not be
// read. Timing: device events, median. Each launch has 5 s; a hang ends the program.
#include <chrono>
#include <random>
#include <string>
#include <thread>

#include "attention_problem.cuh"
#include "ops/cuda/attention_sm90.cuh"

namespace bench {

using magi::cuda::AttentionShape;
using magi::cuda::HopperAttention;
using magi::cuda::PartWalk;
using magi::cuda::WindowWalk;

struct Variant {
  const char* name;
  void (*full)(const AttentionArgs&, cudaStream_t);
  void (*windows)(const AttentionArgs&, const WindowOptions&, bool windows, bool rest, cudaStream_t);
};

/// Scratch on the device that grows and stays.
float* scratch(std::size_t bytes) {
  static void* memory = nullptr;
  static std::size_t size = 0;
  if (bytes > size) {
    CHECK(cudaFree(memory));
    CHECK(cudaMalloc(&memory, bytes));
    size = bytes;
  }
  return static_cast<float*>(memory);
}

/// The refiner's attention as the model composes it: the video's windows, then partial results of the other
/// rows over two runs of parts, as two ranks would have them, merged.
template <class Windows, class Parts>
void refiner_attention(const AttentionArgs& all, const WindowOptions& window, bool windows, bool rest,
                       const Windows& attend, const Parts& partly, cudaStream_t stream) {
  const std::int64_t video = window.keys.end, element = all.is_bf16 ? 2 : 4;
  if (windows) attend(all, window, stream);
  const RowRange others{0, all.samples[0].end - video};
  if (!rest || others.size() == 0) return;
  AttentionArgs args = all;
  const auto move = [&](const void* x, std::int64_t bytes) {
    return static_cast<const char*>(x) + video * bytes;
  };
  args.q = move(args.q, args.q_pitch * element);
  args.out = const_cast<char*>(move(args.out, args.out_pitch * element));
  if (args.gate != nullptr) args.gate = move(args.gate, args.gate_pitch * (args.gate_is_bf16 ? 2 : 4));
  args.samples = {&others, 1};
  const magi::BlockGrid grid(window.grid, window.block);
  std::vector<RowRange> parts;
  for (const RowRange& blocks : magi::window_parts(grid.size())) parts.push_back(grid.rows(blocks));
  parts.push_back({video, video + others.end});
  const std::size_t row = args.heads * (args.head_dim + 2), half = parts.size() / 2;
  float* partials = scratch(others.size() * parts.size() * row * sizeof(float));
  const magi::cuda::AttentionPartials sources[] = {
      {partials, static_cast<int>(half)},
      {partials + others.size() * half * row, static_cast<int>(parts.size() - half)}};
  partly(args, std::span(parts).first(half), partials, stream);
  partly(args, std::span(parts).subspan(half), partials + others.size() * half * row, stream);
  magi::cuda::merge_attention(args, sources, stream);
}

void wait_or_die(cudaEvent_t event, const char* what) {
  const auto start = std::chrono::steady_clock::now();
  for (;;) {
    const cudaError_t state = cudaEventQuery(event);
    if (state == cudaSuccess) return;
    if (state != cudaErrorNotReady) CHECK(state);
    if (std::chrono::steady_clock::now() - start > std::chrono::seconds(5)) {
      std::printf("%s: not done after 5 s\n", what);
      std::fflush(stdout);
      std::_Exit(3);
    }
    std::this_thread::sleep_for(std::chrono::microseconds(50));
  }
}

enum class Piece : std::uint8_t { all, windows, rest };

/// Milliseconds of one launch, of the refiner's attention or a piece of it.
float run(const Variant& v, const AttentionArgs& args, const WindowOptions& window,
          Piece piece = Piece::all) {
  cudaEvent_t begin, end;
  CHECK(cudaEventCreate(&begin));
  CHECK(cudaEventCreate(&end));
  CHECK(cudaEventRecord(begin));
  window.grid[0] > 0 ? v.windows(args, window, piece != Piece::rest, piece != Piece::windows, nullptr)
                     : v.full(args, nullptr);
  CHECK(cudaEventRecord(end));
  wait_or_die(end, v.name);
  float ms = 0;
  CHECK(cudaEventElapsedTime(&ms, begin, end));
  CHECK(cudaEventDestroy(begin));
  CHECK(cudaEventDestroy(end));
  return ms;
}

std::vector<unsigned char> run_poisoned(const Variant& v, const Problem& p, const AttentionArgs& args) {
  CHECK(cudaMemset(p.args.out, 0xff, p.out_bytes));
  run(v, args, p.setup.window);
  std::vector<unsigned char> host(p.out_bytes);
  CHECK(cudaMemcpy(host.data(), p.args.out, p.out_bytes, cudaMemcpyDeviceToHost));
  return host;
}

double value(const std::vector<unsigned char>& out, bool is_bf16, std::int64_t i) {
  std::uint32_t bits = 0;
  if (is_bf16) {
    std::memcpy(reinterpret_cast<unsigned char*>(&bits) + 2, &out[2 * i], 2);
  } else {
    std::memcpy(&bits, &out[4 * i], 4);
  }
  float f;
  std::memcpy(&f, &bits, 4);
  return f;
}

// ---------------------------------------------------------------- checks

std::vector<Probe> probes_of(const Problem& p, std::size_t limit, std::mt19937_64& random) {
  std::vector<Probe> probes;
  for (const RowRange& s : p.setup.samples) {
    for (std::int64_t row = s.first; row < s.end; ++row) {
      for (int h = 0; h < p.setup.heads; ++h) probes.push_back({row, s.first, s.end, h});
    }
  }
  if (probes.size() > limit) {
    std::shuffle(probes.begin(), probes.end(), random);
    probes.resize(limit);
  }
  return probes;
}

std::vector<double> expected_of(const Problem& p, const std::vector<Probe>& probes) {
  Probe* device_probes = nullptr;
  double* device_out = nullptr;
  std::vector<double> expected(probes.size() * p.args.head_dim);
  CHECK(cudaMalloc(&device_probes, probes.size() * sizeof(Probe)));
  CHECK(cudaMalloc(&device_out, expected.size() * sizeof(double)));
  CHECK(cudaMemcpy(device_probes, probes.data(), probes.size() * sizeof(Probe), cudaMemcpyHostToDevice));
  reference<<<static_cast<unsigned>(probes.size()), 256>>>(p.args, p.cells, device_probes, device_out);
  CHECK(cudaGetLastError());
  CHECK(cudaMemcpy(expected.data(), device_out, expected.size() * sizeof(double), cudaMemcpyDeviceToHost));
  CHECK(cudaFree(device_probes));
  CHECK(cudaFree(device_out));
  return expected;
}

/// At most `limit` random (row, head) pairs.
bool check(const Variant& v, const Setup& setup, const char* name, std::size_t limit,
           std::mt19937_64& random) {
  const Problem p(setup, random());
  const std::int64_t dim = p.args.head_dim, element = setup.is_bf16 ? 2 : 4;
  const std::vector<Probe> probes = probes_of(p, limit, random);
  const std::vector<double> expected = expected_of(p, probes);
  const auto first = run_poisoned(v, p, p.args), second = run_poisoned(v, p, p.args);
  double error = 0, norm = 0, worst = 0;
  for (std::size_t i = 0; i < probes.size(); ++i) {
    double row_error = 0, row_norm = 0;
    for (int d = 0; d < dim; ++d) {
      const double want = expected[i * dim + d];
      const double got =
          value(first, setup.is_bf16, probes[i].row * p.args.out_pitch + probes[i].head * dim + d);
      row_error += (got - want) * (got - want);
      row_norm += want * want;
    }
    error += row_error;
    norm += row_norm;
    if (!(row_error / row_norm <= worst)) worst = row_error / row_norm;
  }
  error = std::sqrt(error / norm), worst = std::sqrt(worst);
  std::int64_t written = 0, inside = 0;
  const std::int64_t elements = p.out_bytes / element;
  for (std::int64_t i = 0; i < elements; ++i) {
    written += std::any_of(&first[i * element], &first[i * element] + element,
                           [](unsigned char c) { return c != 0xff; });
  }
  for (const RowRange& s : setup.samples) inside += s.size();
  const bool all = written == inside * p.args.heads * dim, same = first == second;
  const double limit_all = setup.is_bf16 ? 4e-3 : 1e-5, limit_row = setup.is_bf16 ? 1.2e-2 : 1e-4;
  const bool good = error < limit_all && worst < limit_row && all && same;
  std::printf("%-24s %-36s error %.2e worst row %.2e%s%s %s\n", v.name, name, error, worst,
              all ? "" : " UNWRITTEN/STRAY", same ? "" : " DIFFERS BETWEEN RUNS", good ? "ok" : "FAIL");
  return good;
}

/// A sample's output must not depend on what else is in the launch, nor where the sample lies.
bool check_alone(const Variant& v, const Setup& setup, std::mt19937_64& random) {
  const Problem p(setup, random());
  const std::int64_t element = setup.is_bf16 ? 2 : 4, row_bytes = p.args.out_pitch * element;
  const auto together = run_poisoned(v, p, p.args);
  bool good = true;
  for (const RowRange& s : setup.samples) {
    AttentionArgs args = p.args;
    const RowRange alone{0, s.size()};
    const auto move = [&](const void* x, std::int64_t bytes) {
      return static_cast<const char*>(x) + s.first * bytes;
    };
    args.q = move(args.q, args.q_pitch * element);
    args.kv = move(args.kv, args.kv_pitch * element);
    args.out = const_cast<char*>(move(args.out, row_bytes));
    if (args.gate != nullptr) args.gate = move(args.gate, args.gate_pitch * (args.gate_is_bf16 ? 2 : 4));
    args.samples = {&alone, 1};
    const auto single = run_poisoned(v, p, args);
    good &= std::equal(single.begin() + s.first * row_bytes, single.begin() + s.end * row_bytes,
                       together.begin() + s.first * row_bytes);
  }
  std::printf("%-24s %-36s %s\n", v.name, "samples alone, same bits", good ? "ok" : "FAIL");
  return good;
}

/// What every kernel must do, in the dtype and head size of `base`.
bool check_full(const Variant& v, const Setup& base, std::mt19937_64& random) {
  bool good = true;
  const auto one = [&](Setup s, const char* name, std::size_t limit) {
    s.head_dim = base.head_dim, s.is_bf16 = base.is_bf16, s.causal = base.causal;
    if (base.gate == Gate::channels && s.gate != Gate::none) s.gate = base.gate;
    good &= check(v, s, name, limit, random);
    return s;
  };
  for (int n : {1, 17, 79, 80, 81, 127, 128, 129, 191, 192, 193, 353, 1000}) {
    one({.rows = n,
         .samples = {{0, n}},
         .heads = 3,
         .kv_heads = 3,
         .n_sink = 1,
         .gate = Gate::f32,
         .q_factor = n % 2 ? 4.f : 1.f},
        ("one sample of " + std::to_string(n)).c_str(), 3000);
  }
  const Setup two = one({.rows = 1600,
                         .samples = {{7, 1007}, {1007, 1520}},
                         .heads = 8,
                         .kv_heads = 2,
                         .n_sink = 3,
                         .gate = Gate::bf16,
                         .q_factor = 2},
                        "1000 + 513 rows, 8/2 heads", 4096);
  good &= check_alone(v, two, random);
  one({.rows = 1500, .samples = {{0, 700}, {701, 1500}}, .heads = 32, .kv_heads = 8, .q_factor = 8},
      "700 + 799 rows, 32/8, plain, sharp", 4096);
  std::vector<RowRange> many;
  for (int i = 0; i < 19; ++i) many.push_back({i * 40, i * 40 + 2 * i});
  one({.rows = 760, .samples = many, .heads = 4, .kv_heads = 4, .n_sink = 1, .gate = Gate::f32},
      "19 samples of 0 to 36 rows", 2000);
  return good;
}

bool check_windows(const Variant& v, int head_dim, bool is_bf16, std::mt19937_64& random) {
  bool good = true;
  const auto one = [&](std::array<std::int64_t, 3> grid, std::array<std::int64_t, 3> block,
                       std::array<std::int64_t, 3> radius, std::int64_t rest, const char* name) {
    const auto window = WindowOptions::whole(grid, block, radius);
    const std::int64_t rows = window.keys.end + rest;
    good &= check(v,
                  {.rows = rows,
                   .samples = {{0, rows}},
                   .heads = 8,
                   .kv_heads = 2,
                   .head_dim = head_dim,
                   .gate = Gate::bf16,
                   .q_factor = 2,
                   .is_bf16 = is_bf16,
                   .window = window},
                  name, 2000, random);
  };
  one({19, 18, 23}, {8, 4, 4}, {1, 1, 1}, 77, "19×18×23 cells, radius 1");
  one({7, 3, 5}, {8, 4, 4}, {2, 2, 2}, 0, "7×3×5 cells, one window");
  one({9, 13, 40}, {8, 4, 4}, {2, 2, 2}, 333, "9×13×40 cells, radius 2");
  one({5, 7, 9}, {2, 3, 2}, {0, 1, 2}, 1, "5×7×9 cells, small blocks");
  one({9, 20, 21}, {5, 8, 9}, {1, 1, 0}, 5, "9×20×21 cells, large blocks");
  return good;
}

bool check_all(const std::vector<Variant>& full, const std::vector<Variant>& windows,
               const Variant& portable) {
  std::mt19937_64 random(std::random_device{}());
  bool good = true;
  for (const Variant& v : full) {
    good &= check_full(v, {}, random);
    good &= check(v,
                  {.rows = 29616,
                   .samples = {{0, 15015}, {15015, 29616}},
                   .heads = 24,
                   .kv_heads = 24,
                   .n_sink = 1,
                   .gate = Gate::bf16},
                  "15015 + 14601 rows, 24 heads", 1000, random);
  }
  for (const Variant& v : windows) good &= check_windows(v, 128, true, random);
  for (int dim : {64, 128, 256, 16, 72}) {
    std::printf("head size %d\n", dim);
    good &= check_full(portable, {.head_dim = dim}, random);
    good &= check_full(portable, {.head_dim = dim, .gate = Gate::channels, .causal = true}, random);
    if (dim != 256) good &= check_windows(portable, dim, true, random);
  }
  for (int dim : {8, 128, 300}) {
    std::printf("f32, head size %d\n", dim);
    good &= check_full(portable, {.head_dim = dim, .is_bf16 = false}, random);
    good &= check_full(portable, {.head_dim = dim, .gate = Gate::channels, .is_bf16 = false, .causal = true},
                       random);
    if (dim == 8) good &= check_windows(portable, dim, false, random);
  }
  return good;
}

/// A few of the checks, for compute-sanitizer.
bool check_small(const Variant& v, const Variant& windows, const Variant& portable) {
  std::mt19937_64 random(std::random_device{}());
  const Setup full{.rows = 700,
                   .samples = {{3, 370}, {370, 641}},
                   .heads = 4,
                   .kv_heads = 2,
                   .n_sink = 2,
                   .gate = Gate::bf16};
  const Setup small{.rows = 5 * 7 * 9 + 40,
                    .samples = {{0, 5 * 7 * 9 + 40}},
                    .heads = 4,
                    .kv_heads = 2,
                    .window = WindowOptions::whole({5, 7, 9}, {4, 4, 4}, {1, 1, 1})};
  bool good = check(v, full, "367 + 271 rows", 500, random);
  good &= check(windows, small, "5×7×9 cells", 500, random);
  good &= check(portable, full, "367 + 271 rows", 500, random);
  good &= check(portable, small, "5×7×9 cells", 500, random);
  Setup plain = full;
  plain.is_bf16 = false, plain.causal = true, plain.head_dim = 40;
  return check(portable, plain, "f32, causal, head size 40", 500, random) && good;
}

// ---------------------------------------------------------------- timing

void time_piece(const std::vector<Variant>& variants, const Problem& p, const char* name, int repeats,
                Piece piece) {
  std::vector<std::vector<float>> ms(variants.size());
  for (int i = 0; i < 2 + repeats; ++i) {  // in turn, so that all see the same temperature
    for (std::size_t v = 0; v < variants.size(); ++v) {
      const float t = run(variants[v], p.args, p.setup.window, piece);
      if (i >= 2) ms[v].push_back(t);
    }
  }
  const double rest = p.flops() * (p.rest_pairs / p.pairs), flops = piece == Piece::rest ? rest
                                                                    : piece == Piece::windows
                                                                        ? p.flops() - rest
                                                                        : p.flops();
  for (std::size_t v = 0; v < variants.size(); ++v) {
    std::sort(ms[v].begin(), ms[v].end());
    const float median = ms[v][ms[v].size() / 2];
    std::printf("%-14s %-24s%s %8.3f ms (%.3f to %.3f)  %6.1f TFLOP/s\n", name, variants[v].name,
                piece == Piece::rest ? " rest" : "", median, ms[v].front(), ms[v].back(),
                flops / median * 1e-9);
  }
  std::fflush(stdout);
}

void time_one(const std::vector<Variant>& variants, const Setup& setup, const char* name, int repeats) {
  const Problem p(setup, 99);
  if (setup.window.grid[0] == 0) return time_piece(variants, p, name, repeats, Piece::all);
  time_piece(variants, p, name, repeats, Piece::windows);
  time_piece(variants, p, name, 3 * repeats, Piece::rest);
}

void time_all(const std::vector<Variant>& full, const std::vector<Variant>& windows,
              const Variant& portable) {
  const auto one = [&](const std::vector<Variant>& variants, const char* name, std::vector<RowRange> samples,
                       int repeats) {
    const std::int64_t rows = samples.back().end;
    time_one(variants,
             {.rows = rows,
              .samples = std::move(samples),
              .heads = 24,
              .kv_heads = 24,
              .n_sink = 1,
              .gate = Gate::bf16},
             name, repeats);
  };
  one(full, "15015", {{0, 15015}}, 21);
  one(full, "15015+14601", {{0, 15015}, {15015, 29616}}, 11);
  one(full, "57610", {{0, 57610}}, 7);
  one(full, "58024+57610", {{0, 58024}, {58024, 115634}}, 5);
  // A refiner layer at 1920×1088, one guidance branch.
  const std::int64_t rows = 63 * 68 * 120 + 1000;
  time_one(windows,
           {.rows = rows,
            .samples = {{0, rows}},
            .heads = 32,
            .kv_heads = 8,
            .gate = Gate::bf16,
            .window = WindowOptions::whole({63, 68, 120}, {8, 4, 4}, {2, 2, 2})},
           "63x68x120", 3);
  one({portable}, "15015", {{0, 15015}}, 5);
  // The text encoder's: causal, head size 256, gated by channel.
  time_one({portable},
           {.rows = 2500,
            .samples = {{0, 2500}},
            .heads = 24,
            .kv_heads = 4,
            .head_dim = 256,
            .gate = Gate::channels,
            .causal = true},
           "2500 causal 256", 5);
}

#define FULL(...)                                                                                     \
  {                                                                                                   \
    "<" #__VA_ARGS__ ">", magi::cuda::attention_launch<HopperAttention<AttentionShape<__VA_ARGS__>>>, \
        nullptr                                                                                       \
  }
/// The rows that attend everything have a kernel shape of their own.
template <class Windows, class Parts>
void windows_then_rest(const AttentionArgs& args, const WindowOptions& window, bool windows, bool rest,
                       cudaStream_t stream) {
  refiner_attention(args, window, windows, rest,
                    magi::cuda::window_attention_launch<HopperAttention<Windows>>,
                    magi::cuda::attention_partials_launch<HopperAttention<Parts>>, stream);
}
void portable_windows(const AttentionArgs& args, const WindowOptions& window, bool windows, bool rest,
                      cudaStream_t stream) {
  refiner_attention(args, window, windows, rest, magi::cuda::window_attention_portable,
                    magi::cuda::attention_partials_portable, stream);
}

#define WINDOWS(window_keys, stages, ...)                                     \
  {                                                                           \
    "<" #window_keys ", 2, " #stages "> <" #__VA_ARGS__ ">", nullptr,         \
        windows_then_rest<AttentionShape<window_keys, 2, stages, WindowWalk>, \
                          AttentionShape<__VA_ARGS__, PartWalk>>              \
  }

}  // namespace bench

int main(int argc, char** argv) {
  using namespace bench;
  const std::string what = argc > 1 ? argv[1] : "";
  const std::vector<Variant> full = {FULL(80, 3, 2), FULL(80, 3, 3), FULL(128, 2, 2), FULL(160, 2, 2),
                                     FULL(176, 2, 2)};
  const std::vector<Variant> windows = {WINDOWS(128, 2, 128, 2, 2), WINDOWS(128, 3, 80, 3, 2),
                                        WINDOWS(160, 2, 176, 2, 2)};
  const Variant portable = {"portable", magi::cuda::attention_portable, portable_windows};
  const bool good = what == "small"  ? check_small(full[0], windows[0], portable)
                    : what != "time" ? check_all(full, windows, portable)
                                     : true;
  if (what != "check" && what != "small") time_all(full, windows, portable);
  std::printf("%s\n", good ? "all good" : "FAILED");
  return good ? 0 : 1;
}
