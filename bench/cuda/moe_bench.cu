// SPDX-License-Identifier: Apache-2.0
// Checks and times the mixture-of-experts kernels on fresh random inputs, at the release's widths and, for
// the portable ones, at small odd sizes. References are plain f64 kernels that read the weights as the
// checkpoint has them. Exit code 0 only if every check passed.
//   moe_bench [--small | --quick | --check] [--time [--portable]] [--once ROWS] [--patience SECONDS] [--seed
//   S]
// --once is one run without checks, for profilers and sanitizers.
#include <cuda_bf16.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "moe_reference.cuh"
#include "ops/cuda/launch.cuh"
#include "ops/cuda/moe.h"

namespace {

using magi::DType;

constexpr MoeShape kRelease{0, 12, 256, 256, 1280, 6};
bool failed = false;
int patience_s = 8;  ///< for a kernel; sanitizers need more

void expect(bool good, const char* what, double value) {
  std::printf("  %-58s %12.4g  %s\n", what, value, good ? "ok" : "FAILED");
  failed |= !good;
}

/// Waits for the device; a kernel that hangs ends the program.
void finish(const char* what) {
  cudaEvent_t done;
  check_cuda(cudaEventCreate(&done), what);
  check_cuda(cudaEventRecord(done), what);
  const auto start = std::chrono::steady_clock::now();
  cudaError_t status;
  while ((status = cudaEventQuery(done)) == cudaErrorNotReady) {
    if (std::chrono::steady_clock::now() - start > std::chrono::seconds(patience_s)) {
      std::printf("%s: not done after %d s\n", what, patience_s);
      std::fflush(stdout);
      _exit(3);
    }
    std::this_thread::sleep_for(std::chrono::microseconds(200));
  }
  check_cuda(status, what);
  cudaEventDestroy(done);
}

// ---------------------------------------------------------------- the layer

/// NVFP4 weights and the same as numbers; T = Bf16 or float; packed for the Hopper kernels where they take
/// the shape.
template <typename T>
struct Layer {
  MoeShape shape;
  unsigned char* nvfp4;
  T *gate, *up, *down;
  float *router, *bias;
  void *packed = nullptr, *packed_router = nullptr;
  Layer(const MoeShape& s, std::uint64_t seed) : shape(s) {
    const magi::Nvfp4Layout layout{s.experts, s.dim, s.hidden};
    const std::int64_t experts = static_cast<std::int64_t>(s.heads) * s.experts;
    const auto exponent = [](int depth) {  // weights of deviation 1/√depth, roughly
      return static_cast<int>(std::lround(-0.5 * std::log2(depth) - std::log2(184 * 2.9)));
    };
    nvfp4 = array<unsigned char>(experts * layout.expert_bytes());
    fill_nvfp4<<<2048, 256>>>(nvfp4, experts, layout, seed + 1,
                              make_int3(exponent(s.dim), exponent(s.dim), exponent(s.hidden)));
    for (const auto& [to, m] : {std::pair(&gate, magi::ExpertMatrix::gate),
                                {&up, magi::ExpertMatrix::up},
                                {&down, magi::ExpertMatrix::down}}) {
      *to = array<T>(experts * s.dim * s.hidden);
      dequantise_nvfp4<<<2048, 256>>>(nvfp4, experts, layout, m, *to);
    }
    const float sigma = 1 / std::sqrt(float(s.dim));
    router = random_array<float>(s.heads * s.experts * s.dim, seed + 4, sigma);
    bias = random_array<float>(s.heads * s.experts, seed + 5, 0.02f);
    if (sizeof(T) == 2 && magi::cuda::moe_sm90_takes(s)) {
      check_cuda(cudaMalloc(&packed, magi::cuda::packed_experts_bytes(s, s.heads)), "allocate");
      check_cuda(cudaMalloc(&packed_router, magi::cuda::packed_router_bytes(s)), "allocate");
      magi::cuda::pack_experts(gate, up, down, packed, s, s.heads, nullptr);
      magi::cuda::pack_router(router, packed_router, s, nullptr);
    }
    finish("pack");
  }
};

template <typename T>
struct Run {
  static constexpr DType kType = sizeof(T) == 2 ? DType::bf16 : DType::f32;
  const Layer<T>& l;
  MoeShape shape;
  const T* z;
  bool portable;
  std::int64_t width, index_bytes, expanded_bytes, y_bytes;
  int* index;
  float* weight;
  unsigned char* workspace;
  T *expanded, *y;
  SortedRouting sorted;
  Run(const Layer<T>& layer, std::int64_t rows, const T* z_, bool portable_ = false)
      : l(layer), shape(layer.shape), z(z_), portable(portable_ || !layer.packed) {
    shape.rows = rows;
    width = static_cast<std::int64_t>(shape.heads) * shape.dim;
    const std::int64_t slots = rows * shape.heads * shape.top_k;
    index_bytes = slots * 4;
    expanded_bytes = slots * shape.dim * static_cast<std::int64_t>(sizeof(T));
    y_bytes = rows * width * static_cast<std::int64_t>(sizeof(T));
    index = array<int>(slots);
    weight = array<float>(slots);
    workspace = array<unsigned char>(magi::cuda::moe_workspace_bytes(shape));
    expanded = array<T>(slots * shape.dim);
    y = array<T>(rows * width);
  }
  ~Run() {
    for (void* p : {static_cast<void*>(index), static_cast<void*>(weight), static_cast<void*>(workspace),
                    static_cast<void*>(expanded), static_cast<void*>(y)})
      cudaFree(p);
  }
  void poison() {
    cudaMemset(index, 0xff, index_bytes);
    cudaMemset(weight, 0xff, index_bytes);
    cudaMemset(workspace, 0xff, magi::cuda::moe_workspace_bytes(shape));
    cudaMemset(expanded, 0xff, expanded_bytes);
    cudaMemset(y, 0xff, y_bytes);
  }
  void route() {
    if (portable)
      magi::cuda::route_portable(z, width, kType, l.router, l.bias, kScale, index, weight, shape, nullptr);
    else
      magi::cuda::route(z, width, l.packed_router, l.bias, kScale, index, weight, shape, nullptr);
  }
  void sort() { sorted = magi::cuda::sort_routing(index, workspace, shape, nullptr); }
  /// From the NVFP4 weights.
  void experts_nvfp4() {
    if (portable)
      magi::cuda::run_experts_portable(z, width, kType,
                                       magi::cuda::PortableExperts{nullptr, nullptr, nullptr, l.nvfp4},
                                       sorted, expanded, 0, shape.heads, shape, nullptr);
    else
      magi::cuda::run_experts_nvfp4(z, width, l.nvfp4, sorted, expanded, 0, shape.heads, shape, nullptr);
  }
  void experts() {
    if (portable)
      magi::cuda::run_experts_portable(z, width, kType,
                                       magi::cuda::PortableExperts{l.gate, l.up, l.down, nullptr}, sorted,
                                       expanded, 0, shape.heads, shape, nullptr);
    else
      magi::cuda::run_experts(z, width, l.packed, sorted, expanded, 0, shape.heads, shape, nullptr);
  }
  void combine() {
    magi::cuda::combine_experts(expanded, weight, y, width, {}, kType, 0, shape.heads, shape, nullptr);
  }
  void all() {
    route();
    finish("route");
    sort();
    finish("sort");
    experts();
    finish("experts");
    combine();
    finish("combine");
  }
  std::vector<int> counts() const {
    const int experts = shape.experts;
    std::vector<int> starts(shape.heads * (experts + 1)), counts;
    check_cuda(cudaMemcpy(starts.data(), sorted.expert_start, starts.size() * 4, cudaMemcpyDeviceToHost),
               "counts");
    for (int h = 0; h < shape.heads; ++h)
      for (int e = 0; e < experts; ++e)
        counts.push_back(starts[h * (experts + 1) + e + 1] - starts[h * (experts + 1) + e]);
    return counts;
  }
};

template <typename T>
void check_against_f64(const Run<T>& r) {
  auto* route_errors = array<RouteErrors>(1);
  auto* expert_errors = array<ExpertErrors>(1);
  auto* bad = array<int>(1);
  cudaMemset(route_errors, 0, sizeof(RouteErrors));
  cudaMemset(bad, 0, 4);
  cudaMemset(expert_errors, 0, sizeof(ExpertErrors));
  const MoeShape& s = r.shape;
  const int samples = static_cast<int>(std::min<std::int64_t>(s.rows, 2000));
  check_route<<<dim3(samples, s.heads), s.experts>>>(s, r.z, r.l.router, r.l.bias, r.index, r.weight,
                                                     route_errors);
  check_order<<<dim3(s.experts, s.heads), 128>>>(s, r.sorted, r.index, bad);
  check_experts<<<dim3(kSamples, s.heads), s.dim>>>(s, r.z, r.l.gate, r.l.up, r.l.down, r.index, r.weight,
                                                    r.y, expert_errors);
  finish("references");
  RouteErrors re;
  ExpertErrors ee;
  int misplaced;
  check_cuda(cudaMemcpy(&re, route_errors, sizeof re, cudaMemcpyDeviceToHost), "copy");
  check_cuda(cudaMemcpy(&ee, expert_errors, sizeof ee, cudaMemcpyDeviceToHost), "copy");
  check_cuda(cudaMemcpy(&misplaced, bad, 4, cudaMemcpyDeviceToHost), "copy");
  std::printf("  selections compared: %d of %d\n", re.compared, samples * s.heads);
  expect(re.mismatches == 0 && re.compared > 0, "selections that differ (margin > 1e-6)", re.mismatches);
  expect(re.weight < 1e-5, "weights, largest error", re.weight);
  expect(misplaced == 0, "places of the sort that are wrong", misplaced);
  const double kernel = std::sqrt(ee.kernel / ee.norm), plain = std::sqrt(ee.plain / ee.norm);
  std::printf("  plain bf16 arithmetic from f64: %.5f\n", plain);
  expect(kernel <= (sizeof(T) == 2 ? plain : 2e-6), "experts, relative error from f64", kernel);
  cudaFree(route_errors);
  cudaFree(expert_errors);
  cudaFree(bad);
}

template <typename T>
void check(const Layer<T>& l, std::int64_t rows, const T* z, const char* name, bool portable = false) {
  Run<T> r(l, rows, z, portable);
  std::printf("%s, %s, %ld rows, %d heads of %d experts %d×%d, top %d\n", name,
              r.portable ? "portable" : "sm90", static_cast<long>(rows), l.shape.heads, l.shape.experts,
              l.shape.dim, l.shape.hidden, l.shape.top_k);
  r.poison();
  r.all();
  const std::vector<int> counts = r.counts();
  std::int64_t total = 0;
  for (int c : counts) total += c;
  const auto [least, most] = std::minmax_element(counts.begin(), counts.end());
  std::printf("  rows an expert: %d to %d\n", *least, *most);
  expect(total * 4 == r.index_bytes, "rows sorted", static_cast<double>(total));
  check_against_f64(r);
  const Digest first = digest(r.y, r.y_bytes), order = digest(r.sorted.order, r.index_bytes);
  if (sizeof(T) == 2) expect(first.nans == 0, "results not written", first.nans);
  const Digest from_numbers = digest(r.expanded, r.expanded_bytes);
  for (int i = 0; i < 3; ++i) {
    cudaMemset(r.expanded, 0xff, r.expanded_bytes);
    r.experts_nvfp4();
    finish("experts from NVFP4");
    expect(digest(r.expanded, r.expanded_bytes).sum == from_numbers.sum, "from NVFP4, same bits", i);
  }
  r.poison();
  r.all();
  const Digest second = digest(r.y, r.y_bytes), order2 = digest(r.sorted.order, r.index_bytes);
  expect(first.sum == second.sum && order.sum == order2.sum, "second run, same bits", 0);
  if (rows == 1000) {
    for (int i = 0; i < 100; ++i) r.experts();
    r.combine();
    finish("experts, 100 times");
    expect(digest(r.y, r.y_bytes).sum == first.sum, "100 runs later, same bits", 0);
  }
  if (rows >= 17) {  // the last 17 rows alone
    Run<T> few(l, 17, z + (rows - 17) * r.width, portable);
    few.poison();
    few.all();
    std::vector<char> a(few.y_bytes), b(few.y_bytes);
    cudaMemcpy(a.data(), few.y, few.y_bytes, cudaMemcpyDeviceToHost);
    cudaMemcpy(b.data(), r.y + (rows - 17) * r.width, few.y_bytes, cudaMemcpyDeviceToHost);
    expect(std::memcmp(a.data(), b.data(), a.size()) == 0, "17 rows alone, same bits", 0);
  }
}

/// Sizes that no tensor-core tile divides.
template <typename T>
void check_small(std::uint64_t seed) {
  for (const MoeShape& shape : {MoeShape{0, 2, 8, 24, 40, 3}, MoeShape{0, 3, 5, 33, 17, 5},
                                MoeShape{0, 1, 256, 128, 96, 6}, MoeShape{0, 2, 64, 200, 72, 1}}) {
    const Layer<T> l(shape, seed);
    const T* z = random_array<T>(1000 * shape.heads * shape.dim, seed + 6, 1.0f);
    for (std::int64_t rows : {1, 17, 333}) check(l, rows, z, sizeof(T) == 2 ? "bf16" : "f32");
  }
}

/// Medians of two works done in turns.
std::pair<double, double> medians_ms(int repeats, const std::function<void()>& first,
                                     const std::function<void()>& second) {
  std::vector<cudaEvent_t> events(2 * repeats + 1);
  for (auto& e : events) cudaEventCreate(&e);
  first();
  second();
  finish("warm-up");
  cudaEventRecord(events[0]);
  for (int i = 0; i < repeats; ++i) {
    first();
    cudaEventRecord(events[2 * i + 1]);
    second();
    cudaEventRecord(events[2 * i + 2]);
  }
  finish("timing");
  std::vector<float> a(repeats), b(repeats);
  for (int i = 0; i < repeats; ++i) {
    cudaEventElapsedTime(&a[i], events[2 * i], events[2 * i + 1]);
    cudaEventElapsedTime(&b[i], events[2 * i + 1], events[2 * i + 2]);
  }
  for (auto& e : events) cudaEventDestroy(e);
  std::sort(a.begin(), a.end());
  std::sort(b.begin(), b.end());
  return {a[repeats / 2], b[repeats / 2]};
}

double median_ms(int repeats, const std::function<void()>& work) {
  return medians_ms(repeats, work, [] {}).first;
}

void time_layer(const Layer<Bf16>& l, std::int64_t rows, const Bf16* z, bool portable) {
  Run<Bf16> r(l, rows, z, portable);
  r.all();
  const std::vector<int> counts = r.counts();
  const auto [least, most] = std::minmax_element(counts.begin(), counts.end());
  const int repeats = portable ? 3 : rows > 50000 ? 9 : 21;
  const double route = median_ms(repeats, [&] { r.route(); });
  const double sort = median_ms(repeats, [&] { r.sort(); });
  const double combine = median_ms(repeats, [&] { r.combine(); });
  std::printf(
      "TIME %s rows %ld (%d..%d an expert): route %.3f ms, sort %.3f ms, combine %.3f ms (%.0f GB/s)\n",
      portable ? "portable" : "sm90", static_cast<long>(rows), *least, *most, route, sort, combine,
      (r.expanded_bytes + r.y_bytes) / combine * 1e-6);
  const double flops =
      static_cast<double>(rows) * l.shape.heads * l.shape.top_k * 3 * 2 * l.shape.dim * l.shape.hidden;
  for (int pass = 0; pass < 2; ++pass) {  // in turns, so that both see the same temperature
    const auto [bf16, nvfp4] = medians_ms(
        repeats, [&] { r.experts(); }, [&] { r.experts_nvfp4(); });
    std::printf("TIME   experts: bf16 %.3f ms = %.0f TFLOP/s, NVFP4 %.3f ms = %.0f TFLOP/s, ratio %.3f\n",
                bf16, flops / bf16 * 1e-9, nvfp4, flops / nvfp4 * 1e-9, nvfp4 / bf16);
  }
}

__global__ void skew(float* bias) {
  const int e = threadIdx.x;
  bias[blockIdx.x * kRelease.experts + e] = e == 3 ? 1e6f : e % 16 == 5 ? 0.0f : -1e6f;  // σ + bias forgets σ
}

}  // namespace

int main(int argc, char** argv) {
  std::setvbuf(stdout, nullptr, _IOLBF, 0);
  bool checks = false, times = false, quick = false, small = false, portable = false;
  std::int64_t once = 0;
  std::uint64_t seed = std::chrono::steady_clock::now().time_since_epoch().count() % 1000000;
  for (int i = 1; i < argc; ++i) {
    const std::string a = argv[i];
    checks |= a == "--check";
    times |= a == "--time";
    quick |= a == "--quick";
    if (a == "--once" && i + 1 < argc) once = std::stoll(argv[++i]);
    if (a == "--patience" && i + 1 < argc) patience_s = std::stoi(argv[++i]);
    small |= a == "--small";
    portable |= a == "--portable";
    if (a == "--seed" && i + 1 < argc) seed = std::stoull(argv[++i]);
  }
  std::printf("seed %lu\n", static_cast<unsigned long>(seed));
  try {
    if (checks || small) {
      check_small<Bf16>(seed + 10);
      check_small<float>(seed + 20);
    }
    if (!(checks || quick || once > 0 || times)) return failed ? 1 : 0;
    const Layer<Bf16> l(kRelease, seed);
    constexpr std::int64_t kRows = 115634;
    const Bf16* z = random_array<Bf16>(kRows * kRelease.heads * kRelease.dim, seed + 6, 1.0f);
    finish("inputs");
    if (checks || quick) check(l, 1000, z, "random");
    if (checks) {
      for (std::int64_t rows : {1, 17, 29616}) check(l, rows, z, "random");
      Layer<Bf16> skewed = l;
      skewed.bias = array<float>(kRelease.heads * kRelease.experts);
      skew<<<kRelease.heads, kRelease.experts>>>(skewed.bias);
      for (std::int64_t rows : {17, 5003}) check(skewed, rows, z, "one expert for every row, 239 empty");
      for (std::int64_t rows : {1, 17, 1000}) check(l, rows, z, "random", true);
    }
    if (once > 0) {
      Run<Bf16> r(l, once, z);
      r.all();
      r.experts_nvfp4();
      finish("experts from NVFP4");
    }
    if (times) {
      for (std::int64_t rows : {29616, 115634}) time_layer(l, rows, z, false);
      if (portable) time_layer(l, 29616, z, true);
    }
  } catch (const std::exception& e) {
    std::printf("%s\n", e.what());
    return 2;
  }
  std::printf(failed ? "FAILED\n" : "all checks passed\n");
  return failed ? 1 : 0;
}
