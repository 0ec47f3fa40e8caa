// SPDX-License-Identifier: Apache-2.0
#include "ops/ops_testing.h"

namespace magi::testing {
namespace {

using DeltaNetTest = OpsTest;
MAGI2_BOTH_DTYPES(DeltaNetTest);

struct Sizes {
  std::int64_t key_heads, value_heads, key_dim, value_dim;
};

struct Input {
  Sizes sizes;
  Tensor qkv, decay, beta, a_log, dt_bias;

  Input(DType dtype, std::int64_t rows, const Sizes& s, float a_log_scale) : sizes(s) {
    qkv = random_tensor(dtype, {rows, 2 * s.key_heads * s.key_dim + s.value_heads * s.value_dim}, 1);
    decay = random_tensor(dtype, {rows, s.value_heads}, 2);
    beta = random_tensor(dtype, {rows, s.value_heads}, 3);
    a_log = random_tensor(DType::f32, {s.value_heads}, 4, a_log_scale);
    dt_bias = random_tensor(DType::f32, {s.value_heads}, 5);
  }
  Tensor run(Ops& ops, std::int64_t rows) const {
    return ops.gated_delta_rule(qkv.rows(0, rows), decay.rows(0, rows), beta.rows(0, rows), a_log, dt_bias,
                                sizes.key_heads, sizes.value_heads, sizes.key_dim, sizes.value_dim);
  }
};

Doubles unit(const double* x, std::int64_t d, double scale) {
  double squares = 0;
  for (std::int64_t i = 0; i < d; ++i) squares += x[i] * x[i];
  Doubles y(x, x + d);
  for (double& v : y) v *= scale / std::sqrt(squares + 1e-6);
  return y;
}

/// The recurrence, row by row.
Doubles recurrence(const Input& in) {
  const auto& [key_heads, value_heads, dk, dv] = in.sizes;
  const Doubles qkv = doubles(in.qkv), decay = doubles(in.decay), beta_in = doubles(in.beta),
                a_log = doubles(in.a_log), dt = doubles(in.dt_bias);
  const std::int64_t rows = in.qkv.dim(0), width = in.qkv.dim(1), keys = key_heads * dk;
  Doubles out(rows * value_heads * dv);
  for (std::int64_t h = 0; h < value_heads; ++h) {
    const std::int64_t key_head = h * key_heads / value_heads;
    Doubles state(dk * dv, 0.0);
    for (std::int64_t t = 0; t < rows; ++t) {
      const double* row = qkv.data() + t * width;
      const Doubles q = unit(row + key_head * dk, dk, 1 / std::sqrt(static_cast<double>(dk)));
      const Doubles k = unit(row + keys + key_head * dk, dk, 1);
      const double* v = row + 2 * keys + h * dv;
      const double g = -std::exp(a_log[h]) * std::log1p(std::exp(decay[t * value_heads + h] + dt[h]));
      const double beta = 1 / (1 + std::exp(-beta_in[t * value_heads + h]));
      for (double& s : state) s *= std::exp(g);
      for (std::int64_t j = 0; j < dv; ++j) {
        double held = 0;
        for (std::int64_t i = 0; i < dk; ++i) held += state[i * dv + j] * k[i];
        double& o = out[(t * value_heads + h) * dv + j];
        for (std::int64_t i = 0; i < dk; ++i) {
          state[i * dv + j] += k[i] * beta * (v[j] - held);
          o += state[i * dv + j] * q[i];
        }
      }
    }
  }
  return out;
}

TEST_P(DeltaNetTest, ChunksGiveTheRecurrence) {
  for (const std::int64_t rows : {0, 1, 5, 63, 64, 65, 200}) {
    for (const Sizes& s : {Sizes{2, 6, 16, 16}, {1, 2, 20, 9}, {3, 3, 8, 40}}) {
      const Input in(dtype(), rows, s, 1.0f);
      EXPECT_LT(relative_error(in.run(*ops_, rows), recurrence(in)), dtype() == DType::bf16 ? 3e-3 : 3e-6)
          << rows << " rows, value_dim " << s.value_dim;
    }
  }
}

TEST_P(DeltaNetTest, AnyStrengthOfDecay) {
  Input in(dtype(), 200, {1, 6, 16, 16}, 0.0f);
  // e^g from 1, over states that live for chunks, to exactly 0
  const float strengths[] = {-30.0f, -6.0f, -4.0f, 3.0f, 6.0f, 100.0f};
  std::copy(std::begin(strengths), std::end(strengths), in.a_log.data<float>());
  EXPECT_LT(relative_error(in.run(*ops_, 200), recurrence(in)), dtype() == DType::bf16 ? 3e-3 : 3e-6);
}

TEST_P(DeltaNetTest, APrefixHasTheSameBits) {
  const Input in(dtype(), 150, {2, 4, 16, 24}, 1.0f);
  omp_set_num_threads(2);
  const Tensor all = in.run(*ops_, 150);
  omp_set_num_threads(1);
  EXPECT_TRUE(same_bytes(in.run(*ops_, 150), all));
  for (const std::int64_t rows : {1, 70, 128})
    EXPECT_TRUE(same_bytes(in.run(*ops_, rows), all.rows(0, rows))) << rows;
}

TEST_P(DeltaNetTest, CausalConvolution) {
  for (const std::int64_t rows : {0, 1, 3, 30}) {
    const std::int64_t channels = 21, taps = 4;
    const Tensor x = random({rows, channels + 2}, 1).columns(1, channels),
                 w = random_f32({channels, taps}, 2);
    const Doubles in = doubles(x), weight = doubles(w);
    Doubles expected(in.size());
    for (std::int64_t t = 0; t < rows; ++t)
      for (std::int64_t c = 0; c < channels; ++c) {
        double v = 0;
        for (std::int64_t j = 0; j < taps; ++j)
          if (t - taps + 1 + j >= 0) v += weight[c * taps + j] * in[(t - taps + 1 + j) * channels + c];
        expected[t * channels + c] = v / (1 + std::exp(-v));
      }
    EXPECT_LT(relative_error(ops_->causal_conv_silu(x, w), expected), tolerance(dtype()));
  }
}

}  // namespace
}  // namespace magi::testing
