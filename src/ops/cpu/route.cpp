// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <limits>

#include "ops/cpu/cpu_ops.h"
#include "ops/cpu/gemm.h"
#include "ops/cpu/vector_math.h"

namespace magi {
namespace {

constexpr float kLowest = -std::numeric_limits<float>::infinity();

/// logits → p = σ(logit) in place, score = p + bias. Lanes beyond `experts` score −∞.
MAGI2_SIMD void score(float* logits, const float* bias, std::int64_t experts, float* scores) {
  for (std::int64_t j = 0; j < experts; j += kLanes) {
    const std::int64_t count = std::min(kLanes, experts - j);
    const Floats p = sigmoid(load(logits + j));
    store(logits + j, p);
    store(scores + j, p + (count == kLanes ? load(bias + j) : load(bias + j, count)));
    for (std::int64_t i = count; i < kLanes; ++i) scores[j + i] = kLowest;
  }
}

MAGI2_SIMD float highest(const float* scores, std::int64_t padded) {
  Floats high = broadcast(kLowest);
  for (std::int64_t j = 0; j < padded; j += kLanes) {
    const Floats v = load(scores + j);
    high = v > high ? v : high;
  }
  float best = kLowest;
  for (std::int64_t i = 0; i < kLanes; ++i) best = std::max(best, high[i]);
  return best;
}

/// Index of the highest score, the lowest of equal ones; NaN and −∞ only when nothing else is left, never one
/// twice.
std::int64_t take_best(float* scores, std::int64_t experts, const std::int32_t* taken,
                       std::int64_t taken_count) {
  const float best = highest(scores, round_up(experts, kLanes));
  std::int64_t index = 0;
  if (best > kLowest) {
    index = std::find(scores, scores + experts, best) - scores;
  } else {
    while (std::find(taken, taken + taken_count, index) != taken + taken_count) ++index;
  }
  scores[index] = kLowest;
  return index;
}

}  // namespace

void CpuOps::do_route(const Tensor& z, const Tensor& gate, const Tensor& bias, std::int64_t heads,
                      std::int64_t top_k, float scale, Routing& routing) {
  const std::int64_t rows = z.dim(0), dim = z.dim(1) / heads, experts = gate.dim(0) / heads;
  const ColumnTiles columns(DType::f32, dim, experts);
  const Gemm& gemm = *columns.gemm;
  const std::int64_t tiles = (rows + kTileRows - 1) / kTileRows;
  const std::int64_t pitch = columns.count * gemm.n();
  Tensor packed = Tensor::empty(DType::u8, {heads, static_cast<std::int64_t>(columns.bytes())});
#pragma omp parallel
  {
    Gemm::Worker multiply(gemm);
    Tensor a = Tensor::empty(DType::f32, {kTileRows * gemm.k()});
    Tensor c = Tensor::empty(DType::f32, {kTileRows * gemm.n()});
    Tensor logits = Tensor::empty(DType::f32, {kTileRows * pitch});
    Tensor scores = Tensor::empty(DType::f32, {round_up(experts, kLanes)});
#pragma omp for schedule(dynamic)
    for (std::int64_t i = 0; i < heads * columns.count; ++i) {
      const std::int64_t head = i / columns.count, column = i % columns.count;
      columns.pack_tile(
          gate.data<float>() + head * experts * dim, DType::f32, true, column,
          static_cast<std::byte*>(packed.raw()) + static_cast<std::size_t>(i) * gemm.packed_bytes());
    }
#pragma omp for schedule(dynamic)
    for (std::int64_t i = 0; i < heads * tiles; ++i) {
      const std::int64_t head = i / tiles, first = i % tiles * kTileRows;
      const std::int64_t count = std::min(kTileRows, rows - first);
      const auto* from = static_cast<const std::byte*>(z.raw()) +
                         static_cast<std::size_t>(first * z.pitch() + head * dim) * size_of(z.dtype());
      copy_block(from, z.dtype(), z.pitch(), count, dim, a.raw(), DType::f32, kTileRows, gemm.k());
      const auto* matrix =
          static_cast<const std::byte*>(packed.raw()) + static_cast<std::size_t>(head) * columns.bytes();
      for (std::int64_t column = 0; column < columns.count; ++column) {
        multiply(a.raw(), columns.tile(matrix, column), c.data<float>(), count);
        for (std::int64_t r = 0; r < count; ++r) {
          std::copy_n(c.data<float>() + r * gemm.n(), gemm.n(),
                      logits.data<float>() + r * pitch + column * gemm.n());
        }
      }
      for (std::int64_t r = 0; r < count; ++r) {
        float* p = logits.data<float>() + r * pitch;
        score(p, bias.data<float>() + head * experts, experts, scores.data<float>());
        std::int32_t* index = routing.index.data<std::int32_t>() + ((first + r) * heads + head) * top_k;
        float* weight = routing.weight.data<float>() + ((first + r) * heads + head) * top_k;
        float total = 0;
        for (std::int64_t choice = 0; choice < top_k; ++choice) {
          index[choice] = static_cast<std::int32_t>(take_best(scores.data<float>(), experts, index, choice));
          weight[choice] = p[index[choice]];
          total += weight[choice];
        }
        for (std::int64_t choice = 0; choice < top_k; ++choice)
          weight[choice] *= scale / std::max(total, 1e-12f);
      }
    }
  }
}

}  // namespace magi
