// SPDX-License-Identifier: Apache-2.0
// Online softmax of a tile of query rows, in base 2.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "core/tensor.h"
#include "ops/cpu/gemm.h"

namespace magi {

class SoftmaxRows {
 public:
  void reset(std::int64_t rows);

  /// scores [rows, width] of `keys` keys (times `scale`) → weights [rows, width] = 2^(score − highest so far)
  /// in `dtype`, rounded to `round_to`; zero where padded or hidden. Row r sees the keys up to causal_from +
  /// r. The row sums are of unrounded weights. Overwrites scores.
  void weigh(float* scores, std::int64_t width, std::int64_t keys, std::int64_t causal_from, float scale,
             DType round_to, DType dtype, void* weights);

  /// sum [rows, depth] = sum · 2^(highest before − highest now) + values.
  void accumulate(float* sum, const float* values, std::int64_t depth) const;

  /// What a row's sum is to be multiplied by at the end: 1/Σ weights, and the share that sinks leave
  /// (`sink`: log₂ Σ 2^logit, −∞ without).
  float factor(std::int64_t row, float sink) const;

  float highest(std::int64_t row) const { return highest_[static_cast<std::size_t>(row)]; }
  float total(std::int64_t row) const { return total_[static_cast<std::size_t>(row)]; }

 private:
  std::int64_t rows_ = 0;
  std::array<float, kTileRows> highest_, total_, shrink_;
};

/// log Σ exp of each head's sinks [n_sink, heads], in base 2; minus infinity without sinks.
std::vector<float> sink_logits(const Tensor& sinks, std::int64_t heads);

/// 1/total, and the share that sinks leave, of a row whose highest logit is `highest` (base 2).
float softmax_factor(float highest, float total, float sink);

/// sum [depth] = sum·before + values·now.
void add_scaled(float* sum, float before, const float* values, float now, std::int64_t depth);

struct AttentionRow {
  const float* sum;
  std::int64_t depth;
  float factor;
  const void* gate;  ///< logits, or null: one a head or one a channel
  DType gate_dtype;
  bool gate_per_head;
};

/// y [depth] = sum · factor · σ(gate)
void store_row(const AttentionRow& row, void* y, DType dtype);

}  // namespace magi
