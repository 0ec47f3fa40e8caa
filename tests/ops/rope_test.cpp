// SPDX-License-Identifier: Apache-2.0
#include "ops/ops_testing.h"

namespace magi::testing {
namespace {

using RopeTest = OpsTest;
MAGI2_BOTH_DTYPES(RopeTest);

struct Sizes {
  std::int64_t rows, heads, kv_heads, head_dim, half;
};

Doubles reference(const Tensor& qkv, const Sizes& s, const NormWeight& q, const NormWeight& k,
                  const Tensor& rope, const Segments& segments) {
  Doubles x = doubles(qkv);
  const Doubles angles = doubles(rope);
  const std::int64_t d = s.head_dim, width = (s.heads + 2 * s.kv_heads) * d;
  for (std::int64_t row = 0; row < s.rows; ++row) {
    for (std::int64_t h = 0; h < s.heads + s.kv_heads; ++h) {
      const NormWeight& w = h < s.heads ? q : k;
      const std::int64_t group =
          w.groups == 1 ? 0 : static_cast<std::int64_t>(segment_of(segments, row).modality);
      const Doubles weight = doubles(w.weight);
      double* head = x.data() + row * width + h * d;
      double squares = 0;
      for (std::int64_t i = 0; i < d; ++i) squares += head[i] * head[i];
      for (std::int64_t i = 0; i < d; ++i)
        head[i] *= (1 + weight[group * d + i]) / std::sqrt(squares / static_cast<double>(d) + 1e-6);
      for (std::int64_t i = 0; i < s.half; ++i) {
        const double sin = angles[row * 2 * s.half + i], cos = angles[row * 2 * s.half + s.half + i];
        const double a = head[i], b = head[s.half + i];
        head[i] = a * cos - b * sin;
        head[s.half + i] = b * cos + a * sin;
      }
    }
  }
  return x;
}

Tensor angles(std::int64_t rows, std::int64_t half) {
  Tensor rope = random_tensor(DType::f32, {rows, 2 * half}, 9, 3.0f);
  for (std::int64_t row = 0; row < rows; ++row)
    for (std::int64_t i = 0; i < half; ++i) {
      float* r = rope.data<float>() + row * 2 * half;
      const float angle = r[i];
      r[i] = std::sin(angle);
      r[half + i] = std::cos(angle);
    }
  return rope;
}

TEST_P(RopeTest, NormAndPartialRotation) {
  for (const Sizes& s : {Sizes{23, 3, 1, 24, 9},
                         {1, 2, 2, 40, 16},
                         {0, 2, 1, 16, 6},
                         {5, 4, 2, 128, 48},
                         {7, 1, 1, 8, 4},
                         {3, 1, 1, 17, 0}}) {
    const std::int64_t width = (s.heads + 2 * s.kv_heads) * s.head_dim;
    Tensor qkv = random({s.rows, width}, 10);
    const NormWeight q{3, random_f32({3 * s.head_dim}, 11, 0.3f)}, k{1, random_f32({s.head_dim}, 12, 0.3f)};
    const Tensor rope = angles(s.rows, s.half);
    const Segments segments = mixed_segments(s.rows);
    const Doubles expected = reference(qkv, s, q, k, rope, segments);
    ops_->qk_norm_rope(qkv, s.heads, s.kv_heads, q, k, rope, segments);
    EXPECT_LT(relative_error(qkv, expected), tolerance(dtype())) << s.head_dim;
  }
}

/// Heads that go elsewhere are the ones that stay, side by side.
TEST_P(RopeTest, IntoParts) {
  for (const std::int64_t dim : {128, 40}) {
    const std::int64_t heads = 6, kv_heads = 3, ratio = 2, rows = 37;
    const Tensor qkv = random({rows, (heads + 2 * kv_heads) * dim}, 16), rope = angles(rows, 16);
    const NormWeight q{3, random_f32({3 * dim}, 17)}, k{1, random_f32({dim}, 18)};
    const Segments segments = mixed_segments(rows);
    const Tensor stay = qkv.clone();
    ops_->qk_norm_rope(stay, heads, kv_heads, q, k, rope, segments);
    std::vector<HeadPart> parts;
    for (const RowRange& kv : {RowRange{0, 2}, {2, 2}, {2, 3}}) {
      const std::int64_t width = kv.size() * (ratio + 2) * dim;
      const Tensor wider = random({rows, width + 8}, 19);
      parts.push_back({wider.columns(0, width), kv.first, kv.size()});
    }
    ops_->qk_norm_rope(qkv.clone(), heads, kv_heads, q, k, rope, segments, parts);
    for (const HeadPart& p : parts) {
      std::int64_t column = 0;
      const auto expect = [&](std::int64_t first_head, std::int64_t count) {
        EXPECT_TRUE(same_bytes(p.to.columns(column, count * dim).clone(),
                               stay.columns(first_head * dim, count * dim).clone()))
            << dim << ", kv heads from " << p.first << ", column " << column;
        column += count * dim;
      };
      expect(p.first * ratio, p.count * ratio);
      expect(heads + p.first, p.count);
      expect(heads + kv_heads + p.first, p.count);
    }
    EXPECT_THROW(
        ops_->qk_norm_rope(qkv.clone(), heads, kv_heads, q, k, rope, segments, std::span(parts).first(1)),
        Error);
  }
}

TEST_P(RopeTest, RowsAreIndependent) {
  const Tensor qkv = random({1000, 4 * 40}, 13), rope = angles(1000, 18);
  const NormWeight q{3, random_f32({3 * 40}, 14)}, k{3, random_f32({3 * 40}, 15)};
  const Segments segments = mixed_segments(1000);
  expect_rows_independent([&](std::int64_t first, std::int64_t count) {
    Tensor part = qkv.rows(first, count).clone();
    ops_->qk_norm_rope(part, 2, 1, q, k, rope.rows(first, count), clipped(segments, first, count));
    return part;
  });
}

}  // namespace
}  // namespace magi::testing
