// SPDX-License-Identifier: Apache-2.0
#include "ops/ops_testing.h"

namespace magi::testing {
namespace {

using NormTest = OpsTest;
MAGI2_BOTH_DTYPES(NormTest);

double sigmoid_of(double x) {
  return 1 / (1 + std::exp(-x));
}

Doubles rms_norm_reference(const Tensor& x, const NormWeight& w, const Segments& segments) {
  const Doubles in = doubles(x), weight = doubles(w.weight);
  const std::int64_t d = x.dim(1);
  Doubles out(in.size());
  for (std::int64_t row = 0; row < x.dim(0); ++row) {
    const std::int64_t group =
        w.groups == 1 ? 0 : static_cast<std::int64_t>(segment_of(segments, row).modality);
    double squares = 0;
    for (std::int64_t i = 0; i < d; ++i) squares += in[row * d + i] * in[row * d + i];
    const double scale = 1 / std::sqrt(squares / static_cast<double>(d) + static_cast<double>(w.eps));
    for (std::int64_t i = 0; i < d; ++i)
      out[row * d + i] = in[row * d + i] * scale * (1 + weight[group * d + i]);
  }
  return out;
}

TEST_P(NormTest, RmsNormPerModality) {
  for (const std::int64_t d : {1, 5, 16, 100}) {
    for (const std::int64_t rows : {0, 1, 37}) {
      const Segments segments = mixed_segments(rows);
      const Tensor x = random({rows, d + 3}, 1).columns(2, d);
      const NormWeight w{3, random_f32({3 * d}, 2, 0.3f)};
      for (const DType out : {DType::f32, DType::bf16}) {
        const Tensor y = ops_->rms_norm(x, w, segments, out);
        EXPECT_EQ(y.dtype(), out);
        EXPECT_LT(relative_error(y, rms_norm_reference(x, w, segments)), tolerance(out)) << d << " " << rows;
      }
    }
  }
}

TEST_P(NormTest, RmsNormWithOneGroup) {
  const Tensor x = random({9, 40}, 3, 1e-3f);
  const NormWeight w{1, random_f32({40}, 4), 1e-5f};
  EXPECT_LT(relative_error(ops_->rms_norm(x, w, {}, dtype()), rms_norm_reference(x, w, {})),
            tolerance(dtype()));
}

TEST_P(NormTest, RmsNormRowsAreIndependent) {
  const Tensor x = random({1000, 77}, 5);
  const NormWeight w{3, random_f32({3 * 77}, 6)};
  const Segments segments = mixed_segments(1000);
  expect_rows_independent([&](std::int64_t first, std::int64_t count) {
    return ops_->rms_norm(x.rows(first, count), w, clipped(segments, first, count), dtype());
  });
}

TEST_P(NormTest, GatedRmsNorm) {
  for (const std::int64_t d : {3, 16, 40}) {
    const std::int64_t rows = 11, heads = 3;
    const Tensor x = random({rows, heads * d}, 1),
                 z = random({rows, heads * d + 1}, 2, 4.0f).columns(1, heads * d);
    const Tensor w = random_f32({d}, 3);
    const Doubles in = doubles(x), gate = doubles(z), weight = doubles(w);
    Doubles expected(in.size());
    for (std::size_t head = 0; head < in.size() / d; ++head) {
      double squares = 0;
      for (std::int64_t i = 0; i < d; ++i) squares += std::pow(in[head * d + i], 2);
      for (std::int64_t i = 0; i < d; ++i) {
        const double g = gate[head * d + i];
        expected[head * d + i] = in[head * d + i] / std::sqrt(squares / static_cast<double>(d) + 1e-6) *
                                 weight[i] * g * sigmoid_of(g);
      }
    }
    EXPECT_LT(relative_error(ops_->gated_rms_norm(x, z, w, 1e-6f), expected), tolerance(dtype()));
  }
}

TEST_P(NormTest, ChannelNormAndActivation) {
  for (const auto kind : {ChannelNorm::Kind::rms, ChannelNorm::Kind::l2}) {
    for (const auto activation : {Activation::none, Activation::relu, Activation::silu}) {
      for (const std::int64_t c : {1, 12, 48}) {
        Tensor x = random({2, 3, 5, c}, 7);
        if (dtype() == DType::f32) std::fill_n(x.data<float>(), c, 0.0f);  // a pixel without length
        ChannelNorm norm{kind, kind == ChannelNorm::Kind::rms ? 1e-8f : 1e-12f, {}, activation};
        if (kind == ChannelNorm::Kind::l2) norm.gamma = random_f32({c}, 8);
        const Doubles in = doubles(x);
        Doubles expected(in.size());
        for (std::size_t pixel = 0; pixel < in.size() / c; ++pixel) {
          double squares = 0;
          for (std::int64_t i = 0; i < c; ++i) squares += std::pow(in[pixel * c + i], 2);
          for (std::int64_t i = 0; i < c; ++i) {
            double v = in[pixel * c + i];
            if (kind == ChannelNorm::Kind::rms)
              v /= std::sqrt(squares / static_cast<double>(c) + 1e-8);
            else
              v *= std::sqrt(static_cast<double>(c)) / std::max(std::sqrt(squares), 1e-12) *
                   doubles(norm.gamma)[i];
            if (activation == Activation::relu) v = std::max(v, 0.0);
            if (activation == Activation::silu) v *= sigmoid_of(v);
            expected[pixel * c + i] = v;
          }
        }
        EXPECT_LT(relative_error(ops_->channel_norm(x, norm), expected), tolerance(dtype()));
      }
    }
  }
}

}  // namespace
}  // namespace magi::testing
