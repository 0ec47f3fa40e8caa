// SPDX-License-Identifier: Apache-2.0
// Checks and times the Hopper attention kernel on its own, without the rest of the project:
//   nvcc -std=c++20 -O3 -Isrc -DFMT_HEADER_ONLY -DFMT_USE_CONSTEXPR=1 -cudart static
//        -gencode=arch=compute_90a,code=sm_90a -o attention_bench bench/cuda/attention_bench.cu
//        src/ops/cuda/tensor_map.cpp
//   attention_bench [check|time]
// Checks compare with fp64 on fresh random inputs, on poisoned outputs, with NaN in the rows that must not be
// read. Timing: device events, median. Each launch has 5 s; a hang ends the program.
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "ops/cuda/attention_launch.cuh"

using magi::RowRange;
using magi::WindowOptions;
using magi::cuda::AttentionArgs;
using magi::cuda::AttentionShape;
using magi::cuda::WindowWalk;
using bf16 = __nv_bfloat16;

#define CHECK(call)                                                                    \
  do {                                                                                 \
    cudaError_t e = (call);                                                            \
    if (e != cudaSuccess) {                                                            \
      std::printf("%s:%d %s: %s\n", __FILE__, __LINE__, #call, cudaGetErrorString(e)); \
      std::fflush(stdout);                                                             \
      std::_Exit(1);                                                                   \
    }                                                                                  \
  } while (0)

namespace {

constexpr int kDim = 128;

// ---------------------------------------------------------------- device helpers

__device__ std::uint64_t mix(std::uint64_t x) {
  x += 0x9e3779b97f4a7c15ull;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ull;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebull;
  return x ^ (x >> 31);
}
__device__ float normal(std::uint64_t seed, std::uint64_t i) {
  const std::uint64_t r = mix(seed ^ mix(i));
  const float u = (static_cast<float>(r >> 40) + 0.5f) * 0x1p-24f,
              v = static_cast<float>(r & 0xffffff) * 0x1p-24f;
  return sqrtf(-2.f * logf(u)) * cospif(2.f * v);
}
/// Normal values; the first `scaled` columns of each row (the q heads) times `factor`.
__global__ void fill(bf16* x, std::int64_t rows, std::int64_t width, std::int64_t scaled, float factor,
                     std::uint64_t seed) {
  const std::int64_t n = rows * width, step = std::int64_t{gridDim.x} * blockDim.x;
  for (std::int64_t i = std::int64_t{blockIdx.x} * blockDim.x + threadIdx.x; i < n; i += step) {
    x[i] = __float2bfloat16(normal(seed, i) * (i % width < scaled ? factor : 1.f));
  }
}
__global__ void fill(float* x, std::int64_t n, std::uint64_t seed) {
  const std::int64_t step = std::int64_t{gridDim.x} * blockDim.x;
  for (std::int64_t i = std::int64_t{blockIdx.x} * blockDim.x + threadIdx.x; i < n; i += step)
    x[i] = normal(seed, i);
}
__global__ void to_bf16(bf16* to, const float* from, std::int64_t n) {
  const std::int64_t step = std::int64_t{gridDim.x} * blockDim.x;
  for (std::int64_t i = std::int64_t{blockIdx.x} * blockDim.x + threadIdx.x; i < n; i += step) {
    to[i] = __float2bfloat16(from[i]);
  }
}

struct Probe {
  std::int64_t row, first, end;
  int head;
};

/// Blocks of the video rows, and how far a query sees; null: everything.
struct Cells {
  const short4* blocks = nullptr;
  std::int64_t video = 0;
  int radius[3] = {};
  __device__ bool sees(std::int64_t query, std::int64_t key) const {
    if (blocks == nullptr || query >= video || key >= video) return true;
    const short4 a = blocks[query], b = blocks[key];
    return abs(a.x - b.x) <= radius[0] && abs(a.y - b.y) <= radius[1] && abs(a.z - b.z) <= radius[2];
  }
};

/// One block a probe: the row's 128 outputs in fp64, two passes over the keys.
__global__ void reference(AttentionArgs a, Cells cells, const Probe* probes, double* out) {
  const Probe p = probes[blockIdx.x];
  const auto* qkv = static_cast<const bf16*>(a.qkv);
  __shared__ double q[kDim], part[256];
  __shared__ double acc[kDim];
  const int t = threadIdx.x, kv = p.head * a.kv_heads / a.heads;
  if (t < kDim) {
    q[t] = __bfloat162float(qkv[p.row * a.qkv_pitch + p.head * kDim + t]);
    acc[t] = 0;
  }
  __syncthreads();
  const auto score = [&](std::int64_t key) {
    if (!cells.sees(p.row, key)) return -1e300;
    double s = 0;
    const bf16* k = qkv + key * a.qkv_pitch + (a.heads + kv) * kDim;
    for (int d = 0; d < kDim; ++d) s += q[d] * __bfloat162float(k[d]);
    return s * a.scale;
  };
  double top = -1e300;
  for (std::int64_t key = p.first + t; key < p.end; key += blockDim.x) top = fmax(top, score(key));
  part[t] = top;
  __syncthreads();
  for (int i = 0; i < 256; ++i) top = fmax(top, part[i]);
  __syncthreads();
  double sum = 0;
  for (std::int64_t base = p.first; base < p.end; base += 256) {
    const std::int64_t key = base + t;
    part[t] = key < p.end && cells.sees(p.row, key) ? exp(score(key) - top) : 0;
    sum += part[t];
    __syncthreads();
    if (t < kDim) {
      for (int i = 0; i < 256 && base + i < p.end; ++i) {
        acc[t] += part[i] *
                  __bfloat162float(qkv[(base + i) * a.qkv_pitch + (a.heads + a.kv_heads + kv) * kDim + t]);
      }
    }
    __syncthreads();
  }
  part[t] = sum;
  __syncthreads();
  sum = 0;
  for (int i = 0; i < 256; ++i) sum += part[i];
  double factor = 1 / sum;
  if (a.sinks) {
    double rest = 0;
    for (int i = 0; i < a.n_sink; ++i) rest += exp(a.sinks[i * a.heads + p.head] - top);
    factor *= sum / (sum + rest);
  }
  if (a.gate) {
    const std::int64_t at = p.row * a.gate_pitch + p.head;
    const double g = a.gate_is_bf16 ? __bfloat162float(static_cast<const bf16*>(a.gate)[at])
                                    : static_cast<const float*>(a.gate)[at];
    factor /= 1 + exp(-g);
  }
  if (t < kDim) out[std::int64_t{blockIdx.x} * kDim + t] = acc[t] * factor;
}

// ---------------------------------------------------------------- a problem

template <class T>
T* allocate(std::int64_t n) {
  T* p = nullptr;
  CHECK(cudaMalloc(&p, std::max<std::int64_t>(n, 1) * sizeof(T)));
  return p;
}

struct Problem {
  std::int64_t rows;
  std::vector<RowRange> samples;
  AttentionArgs args;
  std::int64_t out_bytes;
  std::vector<void*> owned;
  WindowOptions window;  ///< grid of zero cells: none
  Cells cells;

  Problem(std::int64_t rows_, std::vector<RowRange> samples_, int heads, int kv_heads, int n_sink,
          int gate_kind, float q_factor, std::uint64_t seed)
      : rows(rows_), samples(std::move(samples_)) {
    const std::int64_t width = std::int64_t{heads + 2 * kv_heads} * kDim;
    auto* qkv = allocate<bf16>(rows * width);
    auto* out = allocate<bf16>(rows * heads * kDim);
    auto* sinks = allocate<float>(n_sink * heads);
    auto* gate = allocate<float>(rows * heads);
    auto* gate16 = allocate<bf16>(rows * heads);
    owned = {qkv, out, sinks, gate, gate16};
    fill<<<1024, 256>>>(qkv, rows, width, heads * kDim, q_factor, seed);
    fill<<<256, 256>>>(sinks, n_sink * heads, seed + 1);
    fill<<<256, 256>>>(gate, rows * heads, seed + 2);
    to_bf16<<<256, 256>>>(gate16, gate, rows * heads);
    std::int64_t next = 0;  // NaN in rows that belong to no sample
    const auto poison = [&](std::int64_t from, std::int64_t to) {
      CHECK(cudaMemset(qkv + from * width, 0xff, (to - from) * width * sizeof(bf16)));
    };
    for (const RowRange& s : samples) poison(next, s.first), next = s.end;
    poison(next, rows);
    args = {qkv,     width,
            out,     std::int64_t{heads} * kDim,
            heads,   kv_heads,
            kDim,    1.f / std::sqrt(float{kDim}),
            samples, n_sink ? sinks : nullptr,
            n_sink,  nullptr,
            heads,   false};
    if (gate_kind == 1) args.gate = gate;
    if (gate_kind == 2) args.gate = gate16, args.gate_is_bf16 = true;
    out_bytes = rows * heads * kDim * 2;
    CHECK(cudaDeviceSynchronize());
  }
  /// One sample of a video grid, then `rest` rows.
  Problem(const WindowOptions& window_, std::int64_t rest, int heads, int kv_heads, float q_factor,
          std::uint64_t seed)
      : Problem(window_.grid[0] * window_.grid[1] * window_.grid[2] + rest,
                {{0, window_.grid[0] * window_.grid[1] * window_.grid[2] + rest}}, heads, kv_heads, 0, 2,
                q_factor, seed) {
    window = window_;
    std::vector<short4> blocks;
    const auto count = [&](int axis) {
      return (window.grid[axis] + window.block[axis] - 1) / window.block[axis];
    };
    for (std::int64_t t = 0; t < count(0); ++t) {
      for (std::int64_t h = 0; h < count(1); ++h) {
        for (std::int64_t w = 0; w < count(2); ++w) {
          const std::int64_t at[3] = {t, h, w};
          std::int64_t inside = 1;
          for (int i = 0; i < 3; ++i)
            inside *= std::min(window.block[i], window.grid[i] - at[i] * window.block[i]);
          blocks.insert(blocks.end(), inside, make_short4(t, h, w, 0));
        }
      }
    }
    auto* device_blocks = allocate<short4>(blocks.size());
    CHECK(cudaMemcpy(device_blocks, blocks.data(), blocks.size() * sizeof(short4), cudaMemcpyHostToDevice));
    owned.push_back(device_blocks);
    cells.blocks = device_blocks;
    cells.video = blocks.size();
    for (int i = 0; i < 3; ++i) cells.radius[i] = static_cast<int>(window.radius[i]);
    // Pairs per axis factorise: Σ over queries of the cells they see.
    double pairs = 1;
    for (int i = 0; i < 3; ++i) {
      double axis = 0;
      for (std::int64_t b = 0; b < count(i); ++b) {
        const std::int64_t from = std::max<std::int64_t>(b - window.radius[i], 0) * window.block[i];
        const std::int64_t to = std::min((b + window.radius[i] + 1) * window.block[i], window.grid[i]);
        axis +=
            static_cast<double>(to - from) * std::min(window.block[i], window.grid[i] - b * window.block[i]);
      }
      pairs *= axis;
    }
    window_pairs = pairs + 2.0 * cells.video * rest + 1.0 * rest * rest;
  }
  double window_pairs = 0;
  Problem(const Problem&) = delete;
  ~Problem() {
    for (void* p : owned) cudaFree(p);
  }
  double flops() const {
    double total = 4.0 * window_pairs * args.heads * kDim;
    if (total > 0) return total;
    for (const RowRange& s : samples) total += 4.0 * s.size() * s.size() * args.heads * kDim;
    return total;
  }
};

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

struct Variant {
  const char* name;
  void (*full)(const AttentionArgs&, cudaStream_t);
  void (*windows)(const AttentionArgs&, const WindowOptions&, cudaStream_t);
};

/// Milliseconds of one launch.
float run(const Variant& v, const AttentionArgs& args, const WindowOptions& window = {}) {
  cudaEvent_t begin, end;
  CHECK(cudaEventCreate(&begin));
  CHECK(cudaEventCreate(&end));
  CHECK(cudaEventRecord(begin));
  if (window.grid[0] > 0) {
    v.windows(args, window, nullptr);
  } else {
    v.full(args, nullptr);
  }
  CHECK(cudaEventRecord(end));
  wait_or_die(end, v.name);
  float ms = 0;
  CHECK(cudaEventElapsedTime(&ms, begin, end));
  CHECK(cudaEventDestroy(begin));
  CHECK(cudaEventDestroy(end));
  return ms;
}

std::vector<std::uint16_t> output(const Problem& p) {
  std::vector<std::uint16_t> host(p.out_bytes / 2);
  CHECK(cudaMemcpy(host.data(), p.args.out, p.out_bytes, cudaMemcpyDeviceToHost));
  return host;
}
std::vector<std::uint16_t> run_poisoned(const Variant& v, const Problem& p) {
  CHECK(cudaMemset(p.args.out, 0xff, p.out_bytes));
  run(v, p.args, p.window);
  return output(p);
}
double value(std::uint16_t bits) {
  const std::uint32_t wide = std::uint32_t{bits} << 16;
  float f;
  std::memcpy(&f, &wide, 4);
  return f;
}

// ---------------------------------------------------------------- checks

/// All rows of small problems, `limit` random (row, head) pairs of large ones; false and a line on failure.
bool check(const Variant& v, const Problem& p, const char* name, std::int64_t limit,
           std::mt19937_64& random) {
  std::vector<Probe> probes;
  std::int64_t inside = 0;
  for (const RowRange& s : p.samples) {
    inside += s.size();
    for (std::int64_t row = s.first; row < s.end; ++row) {
      for (int h = 0; h < p.args.heads; ++h) probes.push_back({row, s.first, s.end, h});
    }
  }
  if (static_cast<std::int64_t>(probes.size()) > limit) {
    std::shuffle(probes.begin(), probes.end(), random);
    probes.resize(limit);
  }
  auto* device_probes = allocate<Probe>(probes.size());
  auto* device_out = allocate<double>(probes.size() * kDim);
  CHECK(cudaMemcpy(device_probes, probes.data(), probes.size() * sizeof(Probe), cudaMemcpyHostToDevice));
  reference<<<static_cast<unsigned>(probes.size()), 256>>>(p.args, p.cells, device_probes, device_out);
  CHECK(cudaGetLastError());
  std::vector<double> expected(probes.size() * kDim);
  CHECK(cudaMemcpy(expected.data(), device_out, expected.size() * 8, cudaMemcpyDeviceToHost));
  CHECK(cudaFree(device_probes));
  CHECK(cudaFree(device_out));

  const auto first = run_poisoned(v, p), second = run_poisoned(v, p);
  double error = 0, norm = 0, worst = 0;
  for (std::size_t i = 0; i < probes.size(); ++i) {
    double row_error = 0, row_norm = 0;
    for (int d = 0; d < kDim; ++d) {
      const double want = expected[i * kDim + d];
      const double got = value(first[probes[i].row * p.args.out_pitch + probes[i].head * kDim + d]);
      row_error += (got - want) * (got - want);
      row_norm += want * want;
    }
    error += row_error;
    norm += row_norm;
    if (!(row_error / row_norm <= worst)) worst = row_error / row_norm;
  }
  error = std::sqrt(error / norm), worst = std::sqrt(worst);
  std::int64_t written = 0;
  for (std::size_t i = 0; i < first.size(); ++i) written += first[i] != 0xffff;
  const bool all = written == inside * p.args.heads * kDim, same = first == second;
  const bool good = error < 4e-3 && worst < 1.2e-2 && all && same;
  std::printf("%-24s %-34s error %.2e worst row %.2e%s%s %s\n", v.name, name, error, worst,
              all ? "" : " UNWRITTEN/STRAY", same ? "" : " DIFFERS BETWEEN RUNS", good ? "ok" : "FAIL");
  return good;
}

/// A sample's output must not depend on what else is in the launch, nor where the sample lies.
bool check_alone(const Variant& v, const Problem& p) {
  const auto together = run_poisoned(v, p);
  bool good = true;
  for (const RowRange& s : p.samples) {
    CHECK(cudaMemset(p.args.out, 0xff, p.out_bytes));
    AttentionArgs args = p.args;
    const RowRange alone{0, s.size()};
    args.qkv = static_cast<const bf16*>(args.qkv) + s.first * args.qkv_pitch;
    args.out = static_cast<bf16*>(args.out) + s.first * args.out_pitch;
    if (args.gate)
      args.gate =
          static_cast<const char*>(args.gate) + s.first * args.gate_pitch * (args.gate_is_bf16 ? 2 : 4);
    args.samples = {&alone, 1};
    run(v, args);
    const auto single = output(p);
    good &= std::equal(single.begin() + s.first * p.args.out_pitch, single.begin() + s.end * p.args.out_pitch,
                       together.begin() + s.first * p.args.out_pitch);
  }
  std::printf("%-24s %-34s %s\n", v.name, "samples alone, same bits", good ? "ok" : "FAIL");
  return good;
}

bool check_all(const Variant& v, std::uint64_t seed) {
  std::mt19937_64 random(seed);
  bool good = true;
  for (int n : {1, 17, 127, 128, 129, 175, 176, 177, 353, 1000}) {
    Problem p(n, {{0, n}}, 3, 3, 1, 1, n % 2 ? 4.f : 1.f, random());
    good &= check(v, p, ("one sample of " + std::to_string(n)).c_str(), 1 << 20, random);
  }
  {
    Problem p(1600, {{7, 1007}, {1007, 1520}}, 8, 2, 3, 2, 2.f, random());
    good &= check(v, p, "1000 + 513 rows, 8/2 heads, bf16 gate", 1 << 20, random);
    good &= check_alone(v, p);
  }
  {
    Problem p(1500, {{0, 700}, {701, 1500}}, 32, 8, 0, 0, 8.f, random());
    good &= check(v, p, "700 + 799 rows, 32/8, plain, sharp", 4096, random);
  }
  {
    std::vector<RowRange> many;
    for (int i = 0; i < 19; ++i) many.push_back({i * 40, i * 40 + 2 * i});
    Problem p(760, many, 4, 4, 1, 1, 1.f, random());
    good &= check(v, p, "19 samples of 0 to 36 rows", 1 << 20, random);
  }
  {
    Problem p(15015 + 14601, {{0, 15015}, {15015, 29616}}, 24, 24, 1, 2, 1.f, random());
    good &= check(v, p, "15015 + 14601 rows, 24 heads", 1000, random);
  }
  return good;
}

bool check_windows(const Variant& v, std::uint64_t seed) {
  std::mt19937_64 random(seed);
  bool good = true;
  const auto one = [&](const WindowOptions& window, int rest, const char* name) {
    Problem p(window, rest, 8, 2, 2.f, random());
    good &= check(v, p, name, 4096, random);
  };
  one({{19, 18, 23}, {8, 4, 4}, {1, 1, 1}}, 77, "19×18×23 cells, radius 1");
  one({{7, 3, 5}, {8, 4, 4}, {2, 2, 2}}, 0, "7×3×5 cells, one window");
  one({{9, 13, 40}, {8, 4, 4}, {2, 2, 2}}, 333, "9×13×40 cells, radius 2");
  one({{5, 7, 9}, {2, 3, 2}, {0, 1, 2}}, 1, "5×7×9 cells, small blocks");
  one({{9, 20, 21}, {5, 8, 9}, {1, 1, 0}}, 5, "9×20×21 cells, large blocks");
  return good;
}

// ---------------------------------------------------------------- timing

void time_one(const std::vector<Variant>& variants, const Problem& p, const char* name, int repeats) {
  std::vector<std::vector<float>> ms(variants.size());
  for (int i = 0; i < 2 + repeats; ++i) {  // in turn, so that all see the same temperature
    for (std::size_t v = 0; v < variants.size(); ++v) {
      const float t = run(variants[v], p.args, p.window);
      if (i >= 2) ms[v].push_back(t);
    }
  }
  for (std::size_t v = 0; v < variants.size(); ++v) {
    std::sort(ms[v].begin(), ms[v].end());
    const float median = ms[v][ms[v].size() / 2];
    std::printf("%-12s %-24s %8.3f ms (%.3f to %.3f)  %6.1f TFLOP/s\n", name, variants[v].name, median,
                ms[v].front(), ms[v].back(), p.flops() / median * 1e-9);
  }
  std::fflush(stdout);
}

void time_full(const std::vector<Variant>& variants) {
  const auto one = [&](const char* name, std::vector<RowRange> samples, int repeats) {
    const std::int64_t rows = samples.back().end;
    time_one(variants, Problem(rows, std::move(samples), 24, 24, 1, 2, 1.f, 99), name, repeats);
  };
  one("15015", {{0, 15015}}, 21);
  one("15015+14601", {{0, 15015}, {15015, 29616}}, 11);
  one("57610", {{0, 57610}}, 7);
  one("58024+57610", {{0, 58024}, {58024, 115634}}, 5);
}

#define FULL(...) \
  { "<" #__VA_ARGS__ ">", magi::cuda::attention_launch<AttentionShape<__VA_ARGS__>>, nullptr }
#define WINDOWS(...)                                                                 \
  {                                                                                  \
    "windows <" #__VA_ARGS__ ">", nullptr,                                           \
        magi::cuda::window_attention_launch<AttentionShape<__VA_ARGS__, WindowWalk>, \
                                            AttentionShape<80, 3, 2>>                \
  }

}  // namespace

int main(int argc, char** argv) {
  const std::string what = argc > 1 ? argv[1] : "";
  const std::vector<Variant> full = {FULL(80, 3, 2), FULL(80, 3, 3), FULL(128, 2, 3), FULL(160, 2, 2),
                                     FULL(176, 2, 2)};
  const std::vector<Variant> windows = {WINDOWS(160, 2, 2), WINDOWS(128, 2, 3), WINDOWS(128, 2, 2),
                                        WINDOWS(80, 2, 4)};
  bool good = true;
  if (what != "time") {
    for (const Variant& v : full) good &= check_all(v, std::random_device{}());
    for (const Variant& v : windows) good &= check_windows(v, std::random_device{}());
  }
  if (what != "check") {
    time_full(full);
    // A refiner layer at 1920×1088, one guidance branch.
    time_one(windows, Problem({{63, 68, 120}, {8, 4, 4}, {2, 2, 2}}, 1000, 32, 8, 1.f, 99), "63x68x120", 3);
  }
  std::printf("%s\n", good ? "all good" : "FAILED");
  return good ? 0 : 1;
}
