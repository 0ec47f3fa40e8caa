// SPDX-License-Identifier: Apache-2.0
// The text encoder's Gated DeltaNet: short causal convolution and gated delta rule (model.md section 6).
//
// The delta rule per row t and head: S ← e^g S, u = β(v − Sᵀk), S ← S + k ⊗ u, o = Sᵀq. It runs in chunks of
// rows (Yang et al., "Gated Delta Networks", 2024). With G the running sum of g in the chunk and S₀ the state
// before it,
//   u_t = β_t(v_t − e^{G_t} S₀ᵀk_t) − Σ_{j<t} β_t e^{G_t−G_j} (k_t·k_j) u_j     a unit lower triangular
//   system o_t = e^{G_t} S₀ᵀq_t + Σ_{j≤t} e^{G_t−G_j} (q_t·k_j) u_j S   = e^{G_C} S₀ + Σ_j e^{G_C−G_j} k_j ⊗
//   u_j
// so all but the triangular system are matrix products, and no exponent is positive.
#include <algorithm>
#include <array>
#include <cmath>

#include "ops/cpu/cpu_ops.h"
#include "ops/cpu/norm.h"
#include "ops/cpu/rows.h"

namespace magi {
namespace {

constexpr std::int64_t kChunk = 64;

template <typename T>
MAGI2_SIMD void conv_silu_row(const T* x, std::int64_t pitch, const float* taps, std::int64_t count,
                              std::int64_t d, T* y) {
  for_lanes(d, [&](std::int64_t i, auto n) MAGI2_INLINE_LAMBDA {
    Floats total{};
    for (std::int64_t j = 0; j < count; ++j) total += load(taps + j * d + i, n) * load(x + j * pitch + i, n);
    store(y + i, silu(total), n);
  });
}

/// c [m,n] = a [m,k]·b [k,n], plus c where `add`. m a multiple of 8, n of 16; all of row pitch k, n, n.
MAGI2_SIMD void multiply(const float* a, const float* b, float* c, std::int64_t m, std::int64_t k,
                         std::int64_t n, bool add) {
  constexpr std::int64_t kRows = 8;
  for (std::int64_t row = 0; row < m; row += kRows)
    for (std::int64_t column = 0; column < n; column += kLanes) {
      Floats total[kRows];
      for (std::int64_t r = 0; r < kRows; ++r) total[r] = add ? load(c + (row + r) * n + column) : Floats{};
      for (std::int64_t i = 0; i < k; ++i) {
        const Floats v = load(b + i * n + column);
        for (std::int64_t r = 0; r < kRows; ++r) total[r] += a[(row + r) * k + i] * v;
      }
      for (std::int64_t r = 0; r < kRows; ++r) store(c + (row + r) * n + column, total[r]);
    }
}

/// u ← (I + a)⁻¹u with a [kChunk, kChunk] strictly lower triangular, u [kChunk, n].
MAGI2_SIMD void solve(const float* a, float* u, std::int64_t n) {
  for (std::int64_t column = 0; column < n; column += kLanes)
    for (std::int64_t t = 1; t < kChunk; ++t) {
      Floats v = load(u + t * n + column);
      for (std::int64_t j = 0; j < t; ++j) v -= a[t * kChunk + j] * load(u + j * n + column);
      store(u + t * n + column, v);
    }
}

/// y ← x·rsqrt(Σx² + 1e-6)·scale, in f32.
template <typename T>
MAGI2_SIMD void unit_row(const T* x, std::int64_t d, float scale, float* y) {
  const float factor = scale / std::sqrt(sum_of_squares(x, d) + 1e-6f);
  for_lanes(d, [&](std::int64_t i, auto n) MAGI2_INLINE_LAMBDA { store(y + i, load(x + i, n) * factor, n); });
}

/// y ← x·factor + gain·z
template <typename T>
MAGI2_SIMD void blend_row(const T* x, float factor, const float* z, float gain, std::int64_t d, float* y) {
  for_lanes(d, [&](std::int64_t i, auto n)
                   MAGI2_INLINE_LAMBDA { store(y + i, load(x + i, n) * factor + load(z + i, n) * gain, n); });
}

template <typename T>
MAGI2_SIMD void store_row(const float* x, std::int64_t d, T* y) {
  for_lanes(d, [&](std::int64_t i, auto n) MAGI2_INLINE_LAMBDA { store(y + i, load(x + i, n), n); });
}

float number(const Tensor& t, std::int64_t row, std::int64_t column) {
  const std::int64_t i = row * t.pitch() + column;
  return t.dtype() == DType::bf16 ? static_cast<float>(t.data<bf16>()[i]) : t.data<float>()[i];
}

std::int64_t padded(std::int64_t n) {
  return (n + kLanes - 1) / kLanes * kLanes;
}

/// State and scratch of one head; matrices are padded with zeros to whole vectors and whole chunks.
struct DeltaHead {
  std::int64_t key_dim, value_dim, dk, dv;  ///< dk, dv: padded
  std::vector<float> state, q, k, k_columns, u, through_state, scores, system;
  std::array<double, kChunk> decay{};  ///< G: doubles, so that differences of large sums keep their digits
  std::array<float, kChunk> beta{};

  DeltaHead(std::int64_t key, std::int64_t value)
      : key_dim(key),
        value_dim(value),
        dk(padded(key)),
        dv(padded(value)),
        state(dk * dv),
        q(kChunk * dk),
        k(kChunk * dk),
        k_columns(dk * kChunk),
        u(kChunk * dv),
        through_state(kChunk * dv),
        scores(kChunk * kChunk),
        system(kChunk * kChunk) {}

  float decay_between(std::int64_t from, std::int64_t to) const {
    return fast_exp(static_cast<float>(decay[to] - decay[from]));
  }
  float decay_from_start(std::int64_t to) const { return fast_exp(static_cast<float>(decay[to])); }

  /// Where q_row(i), k_row(i), v_row(i), o_row(i) give the i-th row's data and `rows` ≤ kChunk.
  template <typename T>
  struct Rows {
    const T *q, *k, *v;
    std::int64_t pitch;
    T* o;
    std::int64_t o_pitch;
    std::int64_t rows;
  };

  template <typename T>
  void run_chunk(const Rows<T>& in) {
    load_keys(in);
    multiply(k.data(), k_columns.data(), system.data(), kChunk, dk, kChunk, false);
    multiply(q.data(), k_columns.data(), scores.data(), kChunk, dk, kChunk, false);
    apply_decay();
    solve_updates(in);
    write_output(in);
    advance_state();
  }

 private:
  template <typename T>
  void load_keys(const Rows<T>& in) {
    const float scale = 1.0f / std::sqrt(static_cast<float>(key_dim));
    std::fill(q.begin() + in.rows * dk, q.end(), 0.0f);
    std::fill(k.begin() + in.rows * dk, k.end(), 0.0f);
    for (std::int64_t t = 0; t < in.rows; ++t) {
      unit_row(in.q + t * in.pitch, key_dim, scale, q.data() + t * dk);
      unit_row(in.k + t * in.pitch, key_dim, 1.0f, k.data() + t * dk);
    }
    for (std::int64_t t = 0; t < kChunk; ++t)
      for (std::int64_t i = 0; i < dk; ++i) k_columns[i * kChunk + t] = k[t * dk + i];
  }

  void apply_decay() {
    for (std::int64_t t = 0; t < kChunk; ++t)
      for (std::int64_t j = 0; j < kChunk; ++j) {
        const std::int64_t i = t * kChunk + j;
        const float weight = j <= t ? decay_between(j, t) : 0.0f;
        scores[i] = j <= t ? scores[i] * weight : 0.0f;
        system[i] = j < t ? beta[t] * weight * system[i] : 0.0f;
      }
  }

  template <typename T>
  void solve_updates(const Rows<T>& in) {
    multiply(k.data(), state.data(), through_state.data(), kChunk, dk, dv, false);
    std::fill(u.begin(), u.end(), 0.0f);
    for (std::int64_t t = 0; t < in.rows; ++t)
      blend_row(in.v + t * in.pitch, beta[t], through_state.data() + t * dv, -beta[t] * decay_from_start(t),
                value_dim, u.data() + t * dv);
    solve(system.data(), u.data(), dv);
  }

  template <typename T>
  void write_output(const Rows<T>& in) {
    multiply(q.data(), state.data(), through_state.data(), kChunk, dk, dv, false);
    for (std::int64_t t = 0; t < kChunk; ++t) {
      const float weight = decay_from_start(t);
      for (std::int64_t i = 0; i < dv; ++i) through_state[t * dv + i] *= weight;
    }
    multiply(scores.data(), u.data(), through_state.data(), kChunk, kChunk, dv, true);
    for (std::int64_t t = 0; t < in.rows; ++t)
      store_row(through_state.data() + t * dv, value_dim, in.o + t * in.o_pitch);
  }

  void advance_state() {
    const float kept = decay_from_start(kChunk - 1);
    for (float& v : state) v *= kept;
    for (std::int64_t t = 0; t < kChunk; ++t) {
      const float weight = decay_between(t, kChunk - 1);
      for (std::int64_t i = 0; i < dk; ++i) k_columns[i * kChunk + t] *= weight;
    }
    multiply(k_columns.data(), u.data(), state.data(), dk, kChunk, dv, true);
  }
};

/// g = −e^{a_log}·softplus(x). Bounded below, where e^g is zero anyway, so that sums of g stay finite.
float log_decay(float x, float a_log) {
  const float softplus = x > 20.0f ? x : std::log1p(std::exp(x));
  const float g = -std::exp(a_log) * softplus;
  return g < -1000.0f ? -1000.0f : g;
}

}  // namespace

void CpuOps::do_causal_conv_silu(const Tensor& x, const Tensor& weight, Tensor& y) {
  const std::int64_t d = x.dim(1), taps = weight.dim(1);
  std::vector<float> by_tap(static_cast<std::size_t>(taps * d));
  for (std::int64_t c = 0; c < d; ++c)
    for (std::int64_t j = 0; j < taps; ++j) by_tap[j * d + c] = weight.data<float>()[c * taps + j];
  with_type(x.dtype(), [&]<typename T>(T) {
    const T* in = x.data<T>();
    T* out = y.data<T>();
    parallel_for(x.dim(0), [&](std::int64_t row) {
      const std::int64_t count = std::min(taps, row + 1);
      conv_silu_row(in + (row - count + 1) * x.pitch(), x.pitch(), by_tap.data() + (taps - count) * d, count,
                    d, out + row * d);
    });
  });
}

void CpuOps::do_gated_delta_rule(const Tensor& qkv, const Tensor& decay_input, const Tensor& beta_input,
                                 const Tensor& a_log, const Tensor& dt_bias, std::int64_t key_heads,
                                 std::int64_t value_heads, std::int64_t key_dim, std::int64_t value_dim,
                                 Tensor& y) {
  const std::int64_t rows = qkv.dim(0), keys = key_heads * key_dim;
  with_type(qkv.dtype(), [&]<typename T>(T) {
    const T* data = qkv.data<T>();
    T* out = y.data<T>();
    parallel_for(value_heads, [&](std::int64_t h) {
      const std::int64_t key_head = h * key_heads / value_heads;
      DeltaHead head(key_dim, value_dim);
      for (std::int64_t first = 0; first < rows; first += kChunk) {
        const std::int64_t count = std::min(kChunk, rows - first);
        double sum = 0;
        for (std::int64_t t = 0; t < kChunk; ++t) {
          const bool inside = t < count;
          if (inside)
            sum += log_decay(number(decay_input, first + t, h) + dt_bias.data<float>()[h],
                             a_log.data<float>()[h]);
          head.decay[t] = sum;
          head.beta[t] = inside ? sigmoid(number(beta_input, first + t, h)) : 0.0f;
        }
        const T* q = data + first * qkv.pitch() + key_head * key_dim;
        head.run_chunk<T>({q, q + keys, data + first * qkv.pitch() + 2 * keys + h * value_dim, qkv.pitch(),
                           out + first * value_heads * value_dim + h * value_dim, value_heads * value_dim,
                           count});
      }
    });
  });
}

}  // namespace magi
