// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <numeric>

#include "ops/nvfp4.h"
#include "ops_testing.h"
#include "support/expect_error.h"

namespace magi::testing {
namespace {

double swiglu7_of(double a, double b) {
  a = std::min(a, 7.0);
  b = std::clamp(b, -7.0, 7.0);
  return a / (1 + std::exp(-1.702 * a)) * (b + 1);
}

struct Sizes {
  std::int64_t rows, heads, experts, dim, hidden, top_k;
};

using ExpertsTest = OpsTest;

TEST_P(ExpertsTest, RouteChoosesTheHighestScores) {
  unsigned seed = 1;
  for (const Sizes s :
       {Sizes{1, 1, 1, 8, 0, 1}, {70, 3, 11, 20, 0, 4}, {130, 2, 256, 64, 0, 6}, {5, 1, 1024, 16, 0, 64}}) {
    const Tensor z = random({s.rows, s.heads * s.dim}, ++seed);
    const Tensor gate = random_f32({s.heads * s.experts, s.dim}, ++seed, 0.5f);
    const Tensor bias = random_f32({s.heads * s.experts}, ++seed, 0.1f);
    const Routing routing = ops_->route(z, gate, bias, s.heads, s.top_k, 4.9f);
    const Doubles zs = doubles(z), gs = doubles(gate), bs = doubles(bias);
    for (std::int64_t r = 0; r < s.rows; ++r) {
      for (std::int64_t h = 0; h < s.heads; ++h) {
        Doubles p(static_cast<std::size_t>(s.experts)), score(p.size());
        for (std::int64_t e = 0; e < s.experts; ++e) {
          double dot = 0;
          for (std::int64_t i = 0; i < s.dim; ++i) {
            dot += zs[static_cast<std::size_t>((r * s.heads + h) * s.dim + i)] *
                   gs[static_cast<std::size_t>((h * s.experts + e) * s.dim + i)];
          }
          p[static_cast<std::size_t>(e)] = 1 / (1 + std::exp(-dot));
          score[static_cast<std::size_t>(e)] =
              p[static_cast<std::size_t>(e)] + bs[static_cast<std::size_t>(h * s.experts + e)];
        }
        Doubles sorted = score;
        std::sort(sorted.rbegin(), sorted.rend());
        const std::int32_t* index = routing.index.data<std::int32_t>() + (r * s.heads + h) * s.top_k;
        const float* weight = routing.weight.data<float>() + (r * s.heads + h) * s.top_k;
        double total = 0;
        std::vector<bool> seen(p.size());
        for (std::int64_t k = 0; k < s.top_k; ++k) {
          ASSERT_GE(index[k], 0);
          ASSERT_LT(index[k], s.experts);
          const auto e = static_cast<std::size_t>(index[k]);
          EXPECT_FALSE(seen[e]);
          seen[e] = true;
          EXPECT_NEAR(score[e], sorted[static_cast<std::size_t>(k)], 2e-6);
          total += p[e];
        }
        for (std::int64_t k = 0; k < s.top_k; ++k) {
          EXPECT_NEAR(weight[k], p[static_cast<std::size_t>(index[k])] / total * 4.9, 1e-5);
        }
      }
    }
  }
}

TEST_P(ExpertsTest, RouteTiesGoToTheLowerIndexAndNaNStaysInRange) {
  const Tensor gate = Tensor::zeros(DType::f32, {20, 8}), bias = Tensor::zeros(DType::f32, {20});
  const Routing tied = ops_->route(random({3, 8}, 1), gate, bias, 1, 3, 1);
  for (std::int64_t i = 0; i < 9; ++i)
    EXPECT_EQ(tied.index.values<std::int32_t>()[static_cast<std::size_t>(i)], i % 3);
  Tensor nan = Tensor::empty(DType::f32, {1, 8});
  std::fill_n(nan.data<float>(), 8, NAN);
  const Routing lost = ops_->route(nan.to(dtype()), gate, bias, 1, 3, 1);
  for (std::int64_t i = 0; i < 3; ++i)
    EXPECT_EQ(lost.index.values<std::int32_t>()[static_cast<std::size_t>(i)], i);
}

/// Routing where expert 0 of each head gets many rows, expert 1 none.
Routing skewed_routing(const Sizes& s, unsigned seed) {
  std::mt19937 engine(seed);
  Routing routing{Tensor::empty(DType::i32, {s.rows, s.heads, s.top_k}),
                  random_tensor(DType::f32, {s.rows, s.heads, s.top_k}, seed)};
  std::vector<std::int32_t> order(static_cast<std::size_t>(s.experts));
  std::iota(order.begin(), order.end(), 0);
  for (std::int64_t i = 0; i < s.rows * s.heads; ++i) {
    std::shuffle(order.begin(), order.end(), engine);
    if (s.experts > s.top_k)
      std::stable_partition(order.begin(), order.end(), [](std::int32_t e) { return e != 1; });
    if (engine() % 2)
      std::stable_partition(order.begin(), order.end(), [](std::int32_t e) { return e == 0; });
    std::copy_n(order.begin(), s.top_k, routing.index.data<std::int32_t>() + i * s.top_k);
  }
  return routing;
}

struct Weights {
  Tensor gate, up, down;
};

Weights random_experts(DType dtype, const Sizes& s) {
  const Shape in{s.heads * s.experts, s.dim, s.hidden}, out{s.heads * s.experts, s.hidden, s.dim};
  const float a = 2 / std::sqrt(static_cast<float>(s.dim)), b = 1 / std::sqrt(static_cast<float>(s.hidden));
  return {random_tensor(dtype, in, 11, a), random_tensor(dtype, in, 12, a), random_tensor(dtype, out, 13, b)};
}

TEST_P(ExpertsTest, EqualsDoublePrecision) {
  for (const Sizes s :
       {Sizes{1, 1, 1, 4, 6, 1}, {40, 2, 5, 24, 40, 3}, {200, 2, 3, 48, 100, 2}, {90, 1, 8, 300, 520, 2}}) {
    const Weights w = random_experts(dtype(), s);
    const ExpertWeight packed = ops_->pack_experts(w.gate, w.up, w.down, s.heads, dtype());
    const Tensor z = random({s.rows, s.heads * s.dim}, 1);
    const Routing routing = skewed_routing(s, 2);
    const Doubles zs = doubles(z), gate = doubles(w.gate), up = doubles(w.up), down = doubles(w.down);
    Doubles expected(zs.size());
    for (std::int64_t i = 0; i < s.rows * s.heads; ++i) {
      const double* x = zs.data() + i * s.dim;
      for (std::int64_t k = 0; k < s.top_k; ++k) {
        const std::int64_t expert =
            i % s.heads * s.experts +
            routing.index.values<std::int32_t>()[static_cast<std::size_t>(i * s.top_k + k)];
        const double weight = routing.weight.values<float>()[static_cast<std::size_t>(i * s.top_k + k)];
        for (std::int64_t j = 0; j < s.hidden; ++j) {
          double a = 0, b = 0;
          for (std::int64_t d = 0; d < s.dim; ++d) {
            a += x[d] * gate[static_cast<std::size_t>((expert * s.dim + d) * s.hidden + j)];
            b += x[d] * up[static_cast<std::size_t>((expert * s.dim + d) * s.hidden + j)];
          }
          const double hidden = stored(dtype(), swiglu7_of(a, b));
          for (std::int64_t d = 0; d < s.dim; ++d) {
            expected[static_cast<std::size_t>(i * s.dim + d)] +=
                weight * hidden * down[static_cast<std::size_t>((expert * s.hidden + j) * s.dim + d)];
          }
        }
      }
    }
    EXPECT_LT(relative_error(ops_->experts(z, routing, packed), expected), tolerance(dtype()))
        << s.rows << " rows, " << s.experts << " experts " << s.dim << "×" << s.hidden;
  }
}

TEST_P(ExpertsTest, FourBitWeightsEqualTheirNumbersBitForBit) {
  for (const Sizes s :
       {Sizes{1, 1, 1, 4, 6, 1}, {40, 2, 5, 24, 40, 3}, {200, 2, 3, 48, 100, 2}, {150, 1, 3, 256, 1280, 2}}) {
    const Weights w = random_experts(dtype(), s);
    const ExpertWeight packed = ops_->upload_experts(nvfp4_experts(w.gate, w.up, w.down, s.heads, dtype()));
    const PlainExperts numbers = dequantize_experts(static_cast<const std::byte*>(packed.nvfp4.raw()),
                                                    s.heads * s.experts, nvfp4_layout(packed));
    const ExpertWeight plain = ops_->pack_experts(numbers.gate, numbers.up, numbers.down, s.heads, dtype());
    const Tensor z = random({s.rows, s.heads * s.dim}, 1);
    const Routing routing = skewed_routing(s, 2);
    EXPECT_TRUE(same_bytes(ops_->experts(z, routing, packed), ops_->experts(z, routing, plain)))
        << s.rows << " rows, " << s.experts << " experts " << s.dim << "×" << s.hidden;
  }
}

TEST_P(ExpertsTest, ResultsMayBeSpreadOverTensors) {
  const Sizes s{90, 2, 5, 24, 40, 3};
  const Weights w = random_experts(dtype(), s);
  const ExpertWeight packed = ops_->pack_experts(w.gate, w.up, w.down, s.heads, dtype());
  const Tensor z = random({s.rows, s.heads * s.dim}, 1);
  const Routing routing = skewed_routing(s, 2);
  const Tensor whole = ops_->experts(z, routing, packed);
  std::vector<Tensor> parts;
  for (const std::int64_t rows : {31, 0, 59}) parts.push_back(random({rows, 60}, 3).columns(8, 48));
  ops_->experts_into(z, routing, packed, parts);
  EXPECT_TRUE(same_bytes(parts[0], whole.rows(0, 31)));
  EXPECT_TRUE(same_bytes(parts[2], whole.rows(31, 59)));
}

TEST_P(ExpertsTest, NoRowsGiveNoRows) {
  const Sizes s{0, 2, 3, 16, 32, 2};
  const Weights w = random_experts(dtype(), s);
  const ExpertWeight packed = ops_->pack_experts(w.gate, w.up, w.down, s.heads, dtype());
  const Tensor z = random({0, 32}, 1);
  const Routing routing =
      ops_->route(z, random_f32({6, 16}, 2), Tensor::zeros(DType::f32, {6}), s.heads, s.top_k, 1);
  EXPECT_EQ(ops_->experts(z, routing, packed).shape(), Shape({0, 32}));
}

TEST_P(ExpertsTest, RowsAreIndependent) {
  const Sizes s{1000, 2, 4, 64, 160, 2};
  const Weights w = random_experts(dtype(), s);
  const ExpertWeight packed = ops_->pack_experts(w.gate, w.up, w.down, s.heads, dtype());
  const Tensor z = random({s.rows, s.heads * s.dim}, 1);
  const Tensor gate = random_f32({s.heads * s.experts, s.dim}, 2, 0.3f),
               bias = random_f32({s.heads * s.experts}, 3);
  expect_rows_independent([&](std::int64_t first, std::int64_t count) {
    const Tensor rows = z.rows(first, count);
    return ops_->experts(rows, ops_->route(rows, gate, bias, s.heads, s.top_k, 4.9f), packed);
  });
}

TEST_P(ExpertsTest, RefusesWrongInput) {
  const Sizes s{4, 2, 3, 16, 32, 2};
  const Weights w = random_experts(dtype(), s);
  const ExpertWeight packed = ops_->pack_experts(w.gate, w.up, w.down, s.heads, dtype());
  const Tensor z = random({4, 32}, 1);
  Routing routing = skewed_routing(s, 2);
  routing.index.data<std::int32_t>()[5] = 3;
  expect_error([&] { ops_->experts(z, routing, packed); }, "chose expert 3 of 3");
  expect_error(
      [&] {
        ops_->route(z, random_f32({6, 16}, 1), Tensor::zeros(DType::f32, {6}), 2, 4, 1);
      },
      "top 4 of 3");
  expect_error([&] { ops_->pack_experts(w.gate, w.down, w.down, 2, dtype()); }, "W_up is");
}

MAGI2_BOTH_DTYPES(ExpertsTest);

}  // namespace
}  // namespace magi::testing
