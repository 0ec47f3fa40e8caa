// SPDX-License-Identifier: Apache-2.0
#include "ops/cpu/softmax.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "ops/cpu/vector_math.h"

namespace magi {
namespace {

/// 2^x for x ≤ 0 within 2 ulp; exactly 0 below −126 (a hidden key's −∞ too). Cephes' polynomial.
MAGI2_INLINE Floats exp2_below_one(Floats x) {
  const Floats shifted = x + 12582912.0f;  // 1.5·2²³: the sum's low bits are the nearest integer
  const Floats r = x - (shifted - 12582912.0f);
  Floats p = r * 1.535336188319500e-4f + 1.339887440266574e-3f;
  p = p * r + 9.618437357674640e-3f;
  p = p * r + 5.550332471162809e-2f;
  p = p * r + 2.402264791363012e-1f;
  p = p * r + 6.931472028550421e-1f;
  p = p * r + 1.0f;
  const Floats result =
      std::bit_cast<Floats>(std::bit_cast<UInts>(p) + (std::bit_cast<UInts>(shifted) << 23));
  const Floats lowest = Floats{} - 126.0f;
  return x < lowest ? Floats{} : result;
}

MAGI2_INLINE float highest_lane(Floats v) {
  float lanes[kLanes];
  store(lanes, v);
  for (int width = 8; width > 0; width /= 2) {
    for (int i = 0; i < width; ++i) lanes[i] = lanes[i] > lanes[i + width] ? lanes[i] : lanes[i + width];
  }
  return lanes[0];
}

/// One row of one chunk. `seen` keys count; weights are zero from there to `width`.
struct ChunkRow {
  float* scores;
  std::int64_t width, seen;
  float scale;
  bool round_f32;  ///< f32 weights that stand for bf16 ones
  float highest;
  float total;
};

template <typename T>
MAGI2_INLINE void weigh_row(ChunkRow& row, T* weights) {
  const std::int64_t padded = round_up(row.seen, kLanes);
  for (std::int64_t j = row.seen; j < padded; ++j) row.scores[j] = -std::numeric_limits<float>::infinity();
  Floats high = broadcast(-std::numeric_limits<float>::infinity());
  for (std::int64_t j = 0; j < padded; j += kLanes) {
    const Floats v = load(row.scores + j) * row.scale;
    high = v > high ? v : high;
  }
  row.highest = std::max(row.highest, highest_lane(high));
  Floats total{};
  for (std::int64_t j = 0; j < padded; j += kLanes) {
    const Floats weight = exp2_below_one(load(row.scores + j) * row.scale - row.highest);
    total += weight;
    if (row.round_f32) {
      bf16 rounded[kLanes];
      store(rounded, weight);
      store(weights + j, load(rounded));
    } else {
      store(weights + j, weight);
    }
  }
  for (std::int64_t j = padded; j < row.width; j += kLanes) store(weights + j, Floats{});
  row.total = sum(total);
}
MAGI2_SIMD void weigh_f32(ChunkRow& row, float* weights) {
  weigh_row(row, weights);
}
MAGI2_SIMD void weigh_bf16(ChunkRow& row, bf16* weights) {
  weigh_row(row, weights);
}

MAGI2_SIMD void accumulate_row(float* sum, const float* values, float shrink, std::int64_t depth) {
  for (std::int64_t j = 0; j < depth; j += kLanes) store(sum + j, load(sum + j) * shrink + load(values + j));
}

template <typename T, typename G>
MAGI2_INLINE void store_gated(const AttentionRow& row, T* y) {
  const G* gate = static_cast<const G*>(row.gate);
  const Floats scale = broadcast(row.gate && row.gate_per_head ? sigmoid(static_cast<float>(*gate)) : 1.0f);
  for (std::int64_t j = 0; j < row.depth; j += kLanes) {
    const std::int64_t count = std::min(kLanes, row.depth - j);
    Floats v = load(row.sum + j) * row.factor * scale;
    if (row.gate && !row.gate_per_head)
      v = v * sigmoid(count == kLanes ? load(gate + j) : load(gate + j, count));
    if (count == kLanes) {
      store(y + j, v);
    } else {
      store(y + j, v, count);
    }
  }
}
MAGI2_SIMD void store_f32_f32(const AttentionRow& row, float* y) {
  store_gated<float, float>(row, y);
}
MAGI2_SIMD void store_f32_bf16(const AttentionRow& row, float* y) {
  store_gated<float, bf16>(row, y);
}
MAGI2_SIMD void store_bf16_f32(const AttentionRow& row, bf16* y) {
  store_gated<bf16, float>(row, y);
}
MAGI2_SIMD void store_bf16_bf16(const AttentionRow& row, bf16* y) {
  store_gated<bf16, bf16>(row, y);
}

}  // namespace

void SoftmaxRows::reset(std::int64_t rows) {
  rows_ = rows;
  highest_.fill(-std::numeric_limits<float>::infinity());
  total_.fill(0);
}

void SoftmaxRows::weigh(float* scores, std::int64_t width, std::int64_t keys, std::int64_t causal_from,
                        float scale, DType round_to, DType dtype, void* weights) {
  for (std::int64_t r = 0; r < rows_; ++r) {
    const auto i = static_cast<std::size_t>(r);
    const std::int64_t seen = std::clamp<std::int64_t>(causal_from + r + 1, 0, keys);
    ChunkRow row{scores + r * width, width, seen, scale, round_to == DType::bf16, highest_[i], 0};
    if (dtype == DType::f32) {
      weigh_f32(row, static_cast<float*>(weights) + r * width);
    } else {
      weigh_bf16(row, static_cast<bf16*>(weights) + r * width);
    }
    shrink_[i] = std::exp2(highest_[i] - row.highest);
    total_[i] = total_[i] * shrink_[i] + row.total;
    highest_[i] = row.highest;
  }
}

void SoftmaxRows::accumulate(float* sum, const float* values, std::int64_t depth) const {
  for (std::int64_t r = 0; r < rows_; ++r) {
    accumulate_row(sum + r * depth, values + r * depth, shrink_[static_cast<std::size_t>(r)], depth);
  }
}

float SoftmaxRows::factor(std::int64_t row, float sink) const {
  return softmax_factor(highest(row), total(row), sink);
}

std::vector<float> sink_logits(const Tensor& sinks, std::int64_t heads) {
  std::vector<float> result(static_cast<std::size_t>(heads), -std::numeric_limits<float>::infinity());
  if (!sinks.defined()) return result;
  for (std::int64_t h = 0; h < heads; ++h) {
    const float* logit = sinks.data<float>() + h;
    double high = -std::numeric_limits<double>::infinity(), sum = 0;
    for (std::int64_t i = 0; i < sinks.dim(0); ++i) high = std::max<double>(high, logit[i * heads]);
    for (std::int64_t i = 0; i < sinks.dim(0); ++i) sum += std::exp(logit[i * heads] - high);
    if (sum > 0) result[static_cast<std::size_t>(h)] = static_cast<float>((high + std::log(sum)) * M_LOG2E);
  }
  return result;
}

float softmax_factor(float highest, float total, float sink) {
  const float lse = highest + std::log2(total);
  return 1.0f / (total * (1.0f + std::exp2(sink - lse)));
}

void add_scaled(float* sum, float before, const float* values, float now, std::int64_t depth) {
  for (std::int64_t i = 0; i < depth; ++i) sum[i] = sum[i] * before + values[i] * now;
}

void store_row(const AttentionRow& row, void* y, DType dtype) {
  if (dtype == DType::f32) {
    row.gate_dtype == DType::f32 ? store_f32_f32(row, static_cast<float*>(y))
                                 : store_f32_bf16(row, static_cast<float*>(y));
  } else {
    row.gate_dtype == DType::f32 ? store_bf16_f32(row, static_cast<bf16*>(y))
                                 : store_bf16_bf16(row, static_cast<bf16*>(y));
  }
}

}  // namespace magi
