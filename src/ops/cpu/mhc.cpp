// SPDX-License-Identifier: Apache-2.0
// Manifold-constrained hyper-connections (model.md section 4): S residual streams, mixed anew at every site
// by coefficients that are computed from the streams themselves.
#include <algorithm>
#include <cmath>

#include "ops/cpu/cpu_ops.h"
#include "ops/cpu/norm.h"
#include "ops/cpu/rows.h"

namespace magi {
namespace {

constexpr std::int64_t kRowsAtOnce = 4;  ///< rows that share one pass over phi
constexpr int kSinkhornIterations = 20;
constexpr float kSinkhornEps = 1e-12f;

/// streams ← h_res·streams + h_post ⊗ branch for one row. `old` [S·D] is scratch.
template <typename T>
MAGI2_SIMD void apply_branch(T* streams, const T* branch, const T* post, const T* res, std::int64_t s,
                             std::int64_t d, float* old) {
  for_lanes(s * d,
            [&](std::int64_t i, auto n) MAGI2_INLINE_LAMBDA { store(old + i, load(streams + i, n), n); });
  for (std::int64_t to = 0; to < s; ++to) {
    const float gain = static_cast<float>(post[to]);
    for_lanes(d, [&](std::int64_t i, auto n) MAGI2_INLINE_LAMBDA {
      Floats mixed{};
      for (std::int64_t from = 0; from < s; ++from)
        mixed += static_cast<float>(res[to * s + from]) * load(old + from * d + i, n);
      store(streams + to * d + i, mixed + gain * load(branch + i, n), n);
    });
  }
}

template <typename T>
MAGI2_SIMD void normalise_row(const T* x, const float* w, float eps, std::int64_t d, float* y) {
  normalise(x, w, eps, d, y);
}

/// Columns first…first+count of h [kRowsAtOnce, m] = r [kRowsAtOnce, k]·phi [k, m]. Sums run along k in blocks,
/// which keeps the rounding error of long sums small; the order is the same for every row.
template <typename Count>
MAGI2_INLINE void project_columns(const float* r, const float* phi, std::int64_t k, std::int64_t m,
                                  std::int64_t first, Count count, float* h) {
  constexpr std::int64_t kBlock = 128;
  Floats total[kRowsAtOnce] = {};
  for (std::int64_t block = 0; block < k; block += kBlock) {
    Floats part[kRowsAtOnce] = {};
    for (std::int64_t i = block; i < std::min(k, block + kBlock); ++i) {
      const Floats column = load(phi + i * m + first, count);
      for (std::int64_t row = 0; row < kRowsAtOnce; ++row) part[row] += r[row * k + i] * column;
    }
    for (std::int64_t row = 0; row < kRowsAtOnce; ++row) total[row] += part[row];
  }
  for (std::int64_t row = 0; row < kRowsAtOnce; ++row) store(h + row * m + first, total[row], count);
}

MAGI2_SIMD void project(const float* r, const float* phi, std::int64_t k, std::int64_t m, float* h) {
  if (m < kLanes) return project_columns(r, phi, k, m, 0, m, h);
  for (std::int64_t first = 0; first < m; first += kLanes)  // the last block may overlap the one before it
    project_columns(r, phi, k, m, std::min(first, m - kLanes), AllLanes{}, h);
}

/// In place: exp(v − max v), then alternately divided by the sums of columns and of rows.
void sinkhorn(float* v, std::int64_t s) {
  const float highest = *std::max_element(v, v + s * s);
  for (std::int64_t i = 0; i < s * s; ++i) v[i] = fast_exp(v[i] - highest);
  for (int iteration = 0; iteration < kSinkhornIterations; ++iteration) {
    for (std::int64_t j = 0; j < s; ++j) {
      float total = 0;
      for (std::int64_t i = 0; i < s; ++i) total += v[i * s + j];
      for (std::int64_t i = 0; i < s; ++i) v[i * s + j] /= total + kSinkhornEps;
    }
    for (std::int64_t i = 0; i < s; ++i) {
      float total = 0;
      for (std::int64_t j = 0; j < s; ++j) total += v[i * s + j];
      for (std::int64_t j = 0; j < s; ++j) v[i * s + j] /= total + kSinkhornEps;
    }
  }
}

template <typename T>
struct Coefficients {
  T *pre, *post, *res;
};

/// h [2S+S²] (overwritten) → the coefficients of one row. `width` is S·D.
template <typename T>
void coefficients(float* h, const MhcWeight& w, std::int64_t s, std::int64_t width,
                  const Coefficients<T>& out) {
  const float *alpha = w.alpha.data<float>(), *bias = w.bias.data<float>();
  const float scale = 1.0f / std::sqrt(static_cast<float>(width));
  const auto affine = [&](std::int64_t i, float a) { return a * scale * h[i] + bias[i]; };
  for (std::int64_t i = 0; i < s; ++i) {
    out.pre[i] = static_cast<T>(sigmoid(affine(i, alpha[0])));
    out.post[i] = static_cast<T>(2.0f * sigmoid(affine(s + i, alpha[1])));
  }
  float* mix = h + 2 * s;
  for (std::int64_t i = 0; i < s * s; ++i) mix[i] = affine(2 * s + i, alpha[2]);
  sinkhorn(mix, s);
  for (std::int64_t i = 0; i < s * s; ++i) out.res[i] = static_cast<T>(mix[i]);
}

/// y = RMSNorm(x) with x = Σ pre·streams in the work dtype, for one row. `x` [D] is scratch.
template <typename T>
MAGI2_SIMD void mix_and_norm(const T* streams, const T* pre, const float* w, float eps, std::int64_t s,
                             std::int64_t d, T* x, T* y) {
  for_lanes(d, [&](std::int64_t i, auto n) MAGI2_INLINE_LAMBDA {
    Floats mixed{};
    for (std::int64_t from = 0; from < s; ++from)
      mixed += static_cast<float>(pre[from]) * load(streams + from * d + i, n);
    store(x + i, mixed, n);
  });
  normalise(x, w, eps, d, y);
}

}  // namespace

void CpuOps::do_mhc_site(Tensor& streams, const Tensor& branch, MhcCoefficients& state, const MhcWeight& w,
                         const NormWeight& pre_norm, const Segments& segments, Tensor& n) {
  const std::int64_t rows = streams.dim(0), s = streams.dim(1), d = streams.dim(2), width = s * d;
  const std::int64_t columns = 2 * s + s * s;
  const auto norm_groups = row_groups(segments, w.norm.groups, rows);
  const auto pre_norm_groups = row_groups(segments, pre_norm.groups, rows);
  const float *norm_weight = w.norm.weight.data<float>(), *pre_norm_weight = pre_norm.weight.data<float>();
  const float* phi = w.phi.data<float>();
  with_type(streams.dtype(), [&]<typename T>(T) {
    T *data = streams.data<T>(), *out = n.data<T>();
    T *pre = state.pre.data<T>(), *post = state.post.data<T>(), *res = state.res.data<T>();
    const T* added = branch.defined() ? branch.data<T>() : nullptr;
    parallel_for((rows + kRowsAtOnce - 1) / kRowsAtOnce, [&](std::int64_t tile) {
      thread_local std::vector<float> normed, h;  // normed: also scratch of apply_branch
      thread_local std::vector<T> mixed;
      normed.resize(static_cast<std::size_t>(kRowsAtOnce * width));
      h.resize(static_cast<std::size_t>(kRowsAtOnce * columns));
      mixed.resize(static_cast<std::size_t>(d));
      const std::int64_t first = tile * kRowsAtOnce, count = std::min(kRowsAtOnce, rows - first);
      for (std::int64_t i = 0; i < count; ++i) {
        const std::int64_t row = first + i;
        T* x = data + row * width;
        float* r = normed.data() + i * width;
        if (added) apply_branch(x, added + row * branch.pitch(), post + row * s, res + row * s * s, s, d, r);
        normalise_row(x, norm_weight + norm_groups[row] * width, w.norm.eps, width, r);
      }
      std::fill(normed.begin() + count * width, normed.end(), 0.0f);
      project(normed.data(), phi, width, columns, h.data());
      for (std::int64_t i = 0; i < count; ++i) {
        const std::int64_t row = first + i;
        coefficients<T>(h.data() + i * columns, w, s, width,
                        {pre + row * s, post + row * s, res + row * s * s});
        mix_and_norm(data + row * width, pre + row * s, pre_norm_weight + pre_norm_groups[row] * d,
                     pre_norm.eps, s, d, mixed.data(), out + row * d);
      }
    });
  });
}

void CpuOps::do_mhc_finish(Tensor& streams, const Tensor& branch, const MhcCoefficients& state) {
  const std::int64_t s = streams.dim(1), d = streams.dim(2);
  with_type(streams.dtype(), [&]<typename T>(T) {
    T* data = streams.data<T>();
    const T *added = branch.data<T>(), *post = state.post.data<T>(), *res = state.res.data<T>();
    parallel_for(streams.dim(0), [&](std::int64_t row) {
      thread_local std::vector<float> old;
      old.resize(static_cast<std::size_t>(s * d));
      apply_branch(data + row * s * d, added + row * branch.pitch(), post + row * s, res + row * s * s, s, d,
                   old.data());
    });
  });
}

}  // namespace magi
