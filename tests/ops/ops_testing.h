// SPDX-License-Identifier: Apache-2.0
// What the tests of operations share: random tensors, double-precision views of them, errors, and the checks
// that a row's bits depend on that row alone and not on the number of threads.
#pragma once

#include <gtest/gtest.h>
#include <omp.h>

#include <cmath>
#include <cstring>
#include <memory>
#include <random>
#include <vector>

#include "ops/ops.h"

namespace magi::testing {

using Doubles = std::vector<double>;

/// Normal values times `scale`, representable in `dtype`.
inline Tensor random_tensor(DType dtype, const Shape& shape, unsigned seed, float scale = 1.0f) {
  std::mt19937 engine(seed);
  std::normal_distribution<float> normal;
  Tensor t = Tensor::empty(DType::f32, shape);
  for (float& v : t.values<float>()) v = scale * normal(engine);
  return t.to(dtype);
}

/// The values row by row, without the row pitch.
inline Doubles doubles(const Tensor& t) {
  const Tensor f = t.to(DType::f32);
  const auto values = f.values<float>();
  return {values.begin(), values.end()};
}

/// v as `dtype` stores it.
inline double stored(DType dtype, double v) {
  const auto f = static_cast<float>(v);
  return dtype == DType::bf16 ? static_cast<double>(static_cast<float>(bf16(f))) : static_cast<double>(f);
}

/// ‖actual − expected‖₂ / ‖expected‖₂; NaN where anything is NaN.
inline double relative_error(const Tensor& actual, const Doubles& expected) {
  const Doubles a = doubles(actual);
  if (a.size() != expected.size()) return INFINITY;
  double difference = 0, size = 0;
  for (std::size_t i = 0; i < a.size(); ++i) {
    difference += (a[i] - expected[i]) * (a[i] - expected[i]);
    size += expected[i] * expected[i];
  }
  return std::sqrt(difference / (size > 0 ? size : 1));
}

/// f32 arithmetic, or one rounding to bf16.
inline double tolerance(DType dtype) {
  return dtype == DType::bf16 ? 3e-3 : 1e-6;
}

inline bool same_bytes(const Tensor& a, const Tensor& b) {
  const Tensor x = a.clone(), y = b.clone();
  return x.shape() == y.shape() && x.dtype() == y.dtype() &&
         (x.bytes() == 0 || std::memcmp(x.raw(), y.raw(), x.bytes()) == 0);
}

/// Two samples of all modalities, an empty segment among them; modality and noise of a row depend on `rows`
/// too.
inline Segments mixed_segments(std::int64_t rows) {
  const std::int64_t a = rows / 3, b = rows / 4, c = rows / 8;
  return {{0, Modality::video, 0, a, true},
          {0, Modality::audio, a, 0, true},
          {0, Modality::text, a, b, false},
          {1, Modality::audio, a + b, c, true},
          {1, Modality::video, a + b + c, rows - a - b - c, false}};
}

/// The part of `segments` in rows first…first+count, renumbered from 0.
inline Segments clipped(const Segments& segments, std::int64_t first, std::int64_t count) {
  Segments result;
  for (Segment s : segments) {
    const std::int64_t begin = std::max(s.first, first), end = std::min(s.first + s.rows, first + count);
    s.first = std::clamp(s.first - first, std::int64_t{0}, count);
    s.rows = std::max<std::int64_t>(end - begin, 0);
    result.push_back(s);
  }
  return result;
}

inline const Segment& segment_of(const Segments& segments, std::int64_t row) {
  for (const Segment& s : segments)
    if (row >= s.first && row < s.first + s.rows) return s;
  throw std::out_of_range("row");
}

/// `compute(first, count)` gives an operation's result for rows first…first+count of the same 1000 rows of
/// input. Row 16 must have the same bytes alone, among 17 and among 1000, with one thread and with two.
template <typename Compute>
void expect_rows_independent(const Compute& compute) {
  const int threads = omp_get_max_threads();
  omp_set_num_threads(2);
  const Tensor all = compute(0, 1000);
  omp_set_num_threads(1);
  const Tensor all_on_one_thread = compute(0, 1000);
  const Tensor some = compute(0, 17), alone = compute(16, 1);
  omp_set_num_threads(threads);
  EXPECT_TRUE(same_bytes(all, all_on_one_thread)) << "one and two threads differ";
  EXPECT_TRUE(same_bytes(alone, some.rows(16, 1))) << "a row alone and among 17 differ";
  EXPECT_TRUE(same_bytes(alone, all.rows(16, 1))) << "a row alone and among 1000 differ";
}

/// Tests with the CPU backend over an arena that fills new tensors with NaN, for both work dtypes.
class OpsTest : public ::testing::TestWithParam<DType> {
 protected:
  OpsTest() { arena_.poison(true); }

  DType dtype() const { return GetParam(); }
  Tensor random(const Shape& shape, unsigned seed, float scale = 1.0f) const {
    return random_tensor(dtype(), shape, seed, scale);
  }
  static Tensor random_f32(const Shape& shape, unsigned seed, float scale = 1.0f) {
    return random_tensor(DType::f32, shape, seed, scale);
  }

  Arena arena_ = Arena::on_host(std::size_t{1} << 30);
  std::unique_ptr<Ops> ops_ = make_cpu_ops(arena_);
};

#define MAGI2_BOTH_DTYPES(Suite)                                                   \
  INSTANTIATE_TEST_SUITE_P(Cpu, Suite, ::testing::Values(DType::f32, DType::bf16), \
                           [](const auto& info) { return std::string(name_of(info.param)); })

}  // namespace magi::testing
