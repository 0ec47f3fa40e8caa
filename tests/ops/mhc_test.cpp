// SPDX-License-Identifier: Apache-2.0
#include "ops/ops_testing.h"

namespace magi::testing {
namespace {

using MhcTest = OpsTest;
MAGI2_BOTH_DTYPES(MhcTest);

MhcWeight random_weight(std::int64_t s, std::int64_t d, int groups) {
  const std::int64_t columns = 2 * s + s * s;
  MhcWeight w;
  w.norm = {groups, random_tensor(DType::f32, {groups * s * d}, 1, 0.3f)};
  w.phi = random_tensor(DType::f32, {s * d, columns}, 2);
  w.alpha = random_tensor(DType::f32, {3}, 3, 2.0f);
  w.bias = random_tensor(DType::f32, {columns}, 4);
  return w;
}

/// model.md section 4 for one row, in double; rounded where values are stored. Everything in place.
struct Reference {
  DType dtype;
  std::int64_t s, d;
  Doubles streams, pre, post, res;

  void apply(const Doubles& branch) {
    const Doubles old = streams;
    for (std::int64_t i = 0; i < s; ++i)
      for (std::int64_t c = 0; c < d; ++c) {
        double v = post[i] * branch[c];
        for (std::int64_t j = 0; j < s; ++j) v += res[i * s + j] * old[j * d + c];
        streams[i * d + c] = stored(dtype, v);
      }
  }

  static Doubles normalised(const Doubles& x, const double* w) {
    double squares = 0;
    for (const double v : x) squares += v * v;
    Doubles y(x.size());
    for (std::size_t i = 0; i < x.size(); ++i)
      y[i] = x[i] / std::sqrt(squares / static_cast<double>(x.size()) + 1e-6) * (1 + w[i]);
    return y;
  }

  /// Coefficients, then the branch's normed input.
  Doubles site(const MhcWeight& w, const double* norm, const double* pre_norm) {
    const std::int64_t columns = 2 * s + s * s;
    const Doubles r = normalised(streams, norm), phi = doubles(w.phi), alpha = doubles(w.alpha),
                  bias = doubles(w.bias);
    Doubles h(columns, 0.0);
    for (std::int64_t i = 0; i < s * d; ++i)
      for (std::int64_t c = 0; c < columns; ++c) h[c] += r[i] * phi[i * columns + c];
    for (std::int64_t c = 0; c < columns; ++c)
      h[c] = h[c] * alpha[c < s ? 0 : c < 2 * s ? 1 : 2] / std::sqrt(static_cast<double>(s * d)) + bias[c];
    pre.assign(s, 0), post.assign(s, 0), res.assign(s * s, 0);
    double highest = -INFINITY;
    for (std::int64_t i = 0; i < s; ++i) {
      pre[i] = stored(dtype, 1 / (1 + std::exp(-h[i])));
      post[i] = stored(dtype, 2 / (1 + std::exp(-h[s + i])));
    }
    for (std::int64_t i = 0; i < s * s; ++i) highest = std::max(highest, h[2 * s + i]);
    for (std::int64_t i = 0; i < s * s; ++i) res[i] = std::exp(h[2 * s + i] - highest);
    for (int round = 0; round < 20; ++round) {
      for (std::int64_t j = 0; j < s; ++j) scale_line(j, s);
      for (std::int64_t i = 0; i < s; ++i) scale_line(i * s, 1);
    }
    for (double& v : res) v = stored(dtype, v);
    Doubles x(d, 0.0);
    for (std::int64_t c = 0; c < d; ++c) {
      for (std::int64_t i = 0; i < s; ++i) x[c] += pre[i] * streams[i * d + c];
      x[c] = stored(dtype, x[c]);
    }
    return normalised(x, pre_norm);
  }

  void scale_line(std::int64_t first, std::int64_t step) {
    double total = 1e-12;
    for (std::int64_t i = 0; i < s; ++i) total += res[first + i * step];
    for (std::int64_t i = 0; i < s; ++i) res[first + i * step] /= total;
  }
};

void expect_site(Ops& ops, DType dtype, std::int64_t rows, std::int64_t s, std::int64_t d) {
  const Segments segments = mixed_segments(rows);
  const MhcWeight w = random_weight(s, d, 3);
  const NormWeight pre_norm{3, random_tensor(DType::f32, {3 * d}, 5, 0.3f)};
  Tensor streams = random_tensor(dtype, {rows, s, d}, 6);
  const Tensor first_branch = random_tensor(dtype, {rows, d + 1}, 7).columns(1, d);
  const Tensor last_branch = random_tensor(dtype, {rows, d}, 8);
  const Doubles start = doubles(streams), norm = doubles(w.norm.weight), pre = doubles(pre_norm.weight);

  MhcCoefficients state;
  const Tensor n1 = ops.mhc_site(streams, {}, state, w, pre_norm, segments);
  const Tensor n2 = ops.mhc_site(streams, first_branch, state, w, pre_norm, segments);
  ops.mhc_finish(streams, last_branch, state);

  Doubles expected1, expected2, expected_streams, expected_res;
  const Doubles branch1 = doubles(first_branch), branch2 = doubles(last_branch);
  for (std::int64_t row = 0; row < rows; ++row) {
    const auto group = static_cast<std::int64_t>(segment_of(segments, row).modality);
    Reference reference{dtype, s,  d, {start.begin() + row * s * d, start.begin() + (row + 1) * s * d},
                        {},    {}, {}};
    const auto append = [](Doubles& to, const Doubles& values) {
      to.insert(to.end(), values.begin(), values.end());
    };
    append(expected1, reference.site(w, norm.data() + group * s * d, pre.data() + group * d));
    reference.apply({branch1.begin() + row * d, branch1.begin() + (row + 1) * d});
    append(expected2, reference.site(w, norm.data() + group * s * d, pre.data() + group * d));
    append(expected_res, reference.res);
    reference.apply({branch2.begin() + row * d, branch2.begin() + (row + 1) * d});
    append(expected_streams, reference.streams);
  }
  const double bound = dtype == DType::bf16 ? 4e-3 : 3e-6;
  EXPECT_LT(relative_error(n1, expected1), bound);
  EXPECT_LT(relative_error(n2, expected2), bound);
  EXPECT_LT(relative_error(state.res, expected_res), bound);
  EXPECT_LT(relative_error(streams, expected_streams), bound);
}

TEST_P(MhcTest, TwoSitesAndTheEnd) {
  expect_site(*ops_, dtype(), 21, 4, 24);
  expect_site(*ops_, dtype(), 1, 4, 96);
  expect_site(*ops_, dtype(), 6, 2, 5);
  expect_site(*ops_, dtype(), 3, 1, 17);
  expect_site(*ops_, dtype(), 5, 5, 33);
}

TEST_P(MhcTest, NoRows) {
  Tensor streams = random({0, 4, 8}, 1);
  MhcCoefficients state;
  const Tensor n = ops_->mhc_site(streams, {}, state, random_weight(4, 8, 1), {1, random_f32({8}, 2)}, {});
  EXPECT_EQ(n.shape(), (Shape{0, 8}));
}

TEST_P(MhcTest, MixingWeightsAreDoublyStochastic) {
  Tensor streams = random({50, 4, 24}, 1);
  MhcCoefficients state;
  ops_->mhc_site(streams, {}, state, random_weight(4, 24, 1), {1, random_f32({24}, 2)}, {});
  const Doubles res = doubles(state.res);
  for (std::size_t row = 0; row < 50; ++row)
    for (std::size_t i = 0; i < 4; ++i)
      EXPECT_NEAR(res[row * 16 + i * 4] + res[row * 16 + i * 4 + 1] + res[row * 16 + i * 4 + 2] +
                      res[row * 16 + i * 4 + 3],
                  1.0, dtype() == DType::bf16 ? 1e-2 : 1e-5);
}

TEST_P(MhcTest, LargeMixingLogitsStayFinite) {
  Tensor streams = random({5, 4, 24}, 1);
  MhcWeight w = random_weight(4, 24, 1);
  for (float& v : w.bias.values<float>()) v = 200.0f;
  MhcCoefficients state;
  ops_->mhc_site(streams, {}, state, w, {1, random_f32({24}, 2)}, {});
  for (const double v : doubles(state.res)) EXPECT_TRUE(v >= 0 && v <= 1);
}

TEST_P(MhcTest, RowsAreIndependent) {
  const Tensor streams = random({1000, 4, 24}, 1), branch = random({1000, 24}, 2);
  const MhcWeight w = random_weight(4, 24, 3);
  const NormWeight pre_norm{3, random_f32({3 * 24}, 3)};
  const Segments segments = mixed_segments(1000);
  expect_rows_independent([&](std::int64_t first, std::int64_t count) {
    Tensor part = streams.rows(first, count).clone();
    MhcCoefficients state;
    const Segments local = clipped(segments, first, count);
    ops_->mhc_site(part, {}, state, w, pre_norm, local);
    const Tensor n = ops_->mhc_site(part, branch.rows(first, count), state, w, pre_norm, local);
    ops_->mhc_finish(part, n, state);
    return part;
  });
}

}  // namespace
}  // namespace magi::testing
