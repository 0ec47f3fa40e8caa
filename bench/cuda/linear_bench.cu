// SPDX-License-Identifier: Apache-2.0
// Rates of the release's linear layers in long runs, in which the card's power is the bound, on random normal
// values: linear_bench [seconds]. The layers of a model in turn, each for that long (default 1.5), twice;
// TFLOP/s of the second half of each turn, and a digest of the result of one call. tests/ops checks results.
#include <cstdio>
#include <string>
#include <vector>

#include "ops/devices.h"
#include "ops/lines.h"
#include "ops/ops.h"
#include "random_arrays.cuh"

namespace {

using namespace magi;

struct Layer {
  const char* name;
  std::int64_t in, out;
  Epilogue epilogue;
  DType y;
};

Tensor random_matrix(DType dtype, std::int64_t rows, std::int64_t columns, std::uint64_t seed, float sigma) {
  const std::int64_t pitch = line_pitch(columns, dtype), count = rows * pitch;
  void* p = dtype == DType::bf16 ? static_cast<void*>(random_array<Bf16>(count, seed, sigma))
                                 : random_array<float>(count, seed, sigma);
  return Tensor::view(p, dtype, {rows, pitch}, {p, [](const void* q) { cudaFree(const_cast<void*>(q)); }},
                      {Device::Kind::cuda, 0})
      .columns(0, columns);
}

class Run {
 public:
  Run(Ops& ops, const Layer& layer, std::int64_t rows)
      : ops_(ops),
        layer_(layer),
        x_(random_matrix(DType::bf16, rows, layer.in, 1, 1.0f)),
        y_(random_matrix(layer.y, layer.epilogue == Epilogue::add ? rows : 0, layer.out, 3, 1.0f)) {
    w_.data = random_matrix(DType::bf16, layer.out, layer.in, 2, 0.02f);
    w_.in = layer.in;
    w_.out = layer.out;
    w_.dtype = DType::bf16;
  }

  Digest first() {
    const Tensor y = call();
    const std::int64_t bytes = y.dim(0) * y.dim(1) * static_cast<std::int64_t>(size_of(y.dtype()));
    return digest(y.raw(),
                  y.contiguous() ? bytes : y.pitch() * static_cast<std::int64_t>(size_of(y.dtype())));
  }

  double rate(double seconds) {
    const double flops = 2.0 * static_cast<double>(x_.dim(0) * layer_.in * layer_.out);
    const int calls = std::max(4, static_cast<int>(seconds * 650e12 / flops));
    cudaEvent_t marks[2];
    for (auto& e : marks) cudaEventCreate(&e);
    const auto stream = static_cast<cudaStream_t>(ops_.native_stream());
    for (int i = 0; i < calls; ++i) {
      if (i == calls / 2) cudaEventRecord(marks[0], stream);
      call();
    }
    cudaEventRecord(marks[1], stream);
    check_cuda(cudaEventSynchronize(marks[1]), layer_.name);
    float ms = 0;
    cudaEventElapsedTime(&ms, marks[0], marks[1]);
    for (auto& e : marks) cudaEventDestroy(e);
    return flops * (calls - calls / 2) / ms * 1e-9;
  }

  const Layer& layer() const { return layer_; }

 private:
  Tensor call() {
    if (layer_.epilogue != Epilogue::add) return ops_.linear(x_, w_, {}, layer_.y, layer_.epilogue);
    ops_.linear_add(y_, x_, w_, {});
    return y_;
  }

  Ops& ops_;
  Layer layer_;
  Tensor x_, y_;
  LinearWeight w_;
};

void time_model(Ops& ops, const char* model, std::int64_t rows, const std::vector<Layer>& layers,
                double seconds) {
  std::printf("%s, %ld rows\n", model, static_cast<long>(rows));
  std::vector<Run> runs;
  for (const Layer& layer : layers) runs.emplace_back(ops, layer, rows);
  std::vector<Digest> digests;
  for (Run& run : runs) digests.push_back(run.first());
  for (Run& run : runs) run.rate(seconds / 2);  // to the power limit
  std::vector<double> rates;
  for (int round = 0; round < 2; ++round)
    for (Run& run : runs) rates.push_back(run.rate(seconds));
  for (std::size_t i = 0; i < runs.size(); ++i)
    std::printf("  %-6s %5ld to %5ld: %.0f, %.0f TFLOP/s; digest %llx\n", runs[i].layer().name,
                static_cast<long>(layers[i].in), static_cast<long>(layers[i].out), rates[i],
                rates[i + runs.size()], digests[i].sum);
}

}  // namespace

int main(int argc, char** argv) {
  const double seconds = argc > 1 ? std::stod(argv[1]) : 1.5;
  Arena arena = make_cuda_arena(0, std::size_t{16} << 30);
  const auto ops = make_cuda_ops(arena);
  const std::vector<Layer> refiner{{"qkv", 4096, 6144, Epilogue::none, DType::bf16},
                                   {"proj", 4096, 4096, Epilogue::add, DType::f32},
                                   {"up", 4096, 21840, Epilogue::swiglu7, DType::bf16},
                                   {"down", 10920, 4096, Epilogue::add, DType::f32}};
  const std::vector<Layer> preview{{"qkv", 3072, 9216, Epilogue::none, DType::bf16},
                                   {"proj", 3072, 3072, Epilogue::add, DType::bf16},
                                   {"up", 3072, 2560, Epilogue::swiglu7, DType::bf16},
                                   {"down", 1280, 3072, Epilogue::add, DType::bf16},
                                   {"dense", 3072, 16384, Epilogue::swiglu7, DType::bf16}};
  time_model(*ops, "refiner, 1080p", 514509, refiner, seconds);
  time_model(*ops, "preview, 540p", 57816, preview, seconds / 3);
  time_model(*ops, "preview, 272p", 29616, preview, seconds / 3);
}
