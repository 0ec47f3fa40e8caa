// SPDX-License-Identifier: Apache-2.0
// The CUDA backend's transformer operations against the CPU's: fresh inputs, poisoned outputs, odd sizes, one
// row, empty segments, and the release's widths.
#include <numeric>

#include "cuda_ops_testing.h"

namespace magi::testing {
namespace {

TEST_P(CudaOpsTest, MovesData) {
  const Tensor x = random({5, 7});
  EXPECT_TRUE(same_bytes(gpu_->download(gpu_->upload(x).columns(2, 3)), x.columns(2, 3)));
  Tensor y = gpu_arena_.alloc(dtype(), {5, 7});
  gpu_->copy_in(y, x);
  EXPECT_TRUE(same_bytes(gpu_->download(y), x));
}

TEST_P(CudaOpsTest, LinearOddSizesBiasAndEpilogues) {
  for (const auto& [rows, in, out] : {std::array<int, 3>{1, 8, 2}, {37, 33, 10}, {130, 72, 48}, {5, 3, 6}}) {
    const Tensor x = random({rows, in + 3}), w = random({out, in}, 0.3f), bias = random_f32({out});
    for (const Tensor& b : {Tensor{}, bias})
      for (const Epilogue epilogue : {Epilogue::none, Epilogue::swiglu7, Epilogue::silu_gate})
        for (const DType out_dtype : {DType::f32, DType::bf16})
          compare(
              [&](Ops& ops, const Put& put) -> std::vector<Tensor> {
                const LinearWeight packed = ops.pack_linear(w, 1, dtype(), b);
                return {ops.linear(put(x).columns(3, in), packed, {}, out_dtype, epilogue)};
              },
              out_dtype == DType::bf16 ? 4e-3 : 2e-6);
  }
}

TEST_P(CudaOpsTest, LinearByModality) {
  const Tensor x = random({101, 64}), w = random({3 * 32, 64}, 0.3f);
  const Segments segments = mixed_segments(101);
  compare([&](Ops& ops, const Put& put) -> std::vector<Tensor> {
    return {ops.linear(put(x), ops.pack_linear(w, 3, dtype()), segments, dtype())};
  });
}

TEST_P(CudaOpsTest, LinearInto) {
  const Tensor x = random_f32({9, 48}), w = random_f32({40, 48}, 0.3f), bias = random_f32({40});
  compare([&](Ops& ops, const Put& put) -> std::vector<Tensor> {
    Tensor y = ops.arena().alloc(dtype(), {9, 40});
    ops.linear_into(y, put(x), ops.pack_linear(w, 1, DType::f32, bias));
    return {y};
  });
}

/// Whole 16-byte pieces, but no whole tiles; at most one for each pair of multiprocessors, and more.
TEST_P(CudaOpsTest, LinearByModalityWithEpilogues) {
  for (const auto& [rows, in, out] : {std::array<int, 3>{450, 1000, 528}, {4000, 136, 2064}}) {
    const Tensor x = random({rows, in}), w = random({3 * out, in}, 0.05f);
    const Segments segments = mixed_segments(rows);
    for (const Epilogue epilogue : {Epilogue::none, Epilogue::swiglu7, Epilogue::silu_gate})
      compare(
          [&](Ops& ops, const Put& put) -> std::vector<Tensor> {
            return {ops.linear(put(x), ops.pack_linear(w, 3, dtype()), segments, dtype(), epilogue)};
          },
          5e-6, 1e-3);
  }
}

/// 0.002 would be a library that adds bf16 without rounding the product first; of 30 numbers one that lies
/// next to a tie makes as much.
TEST_P(CudaOpsTest, LinearAdd) {
  struct Case {
    std::int64_t rows, in, out;
    int groups;
  };
  for (const Case c :
       {Case{5, 3, 6, 1}, {101, 64, 40, 3}, {450, 1000, 528, 3}, {300, 1280, 3072, 3}, {300, 4096, 4096, 1}})
    for (const DType y_dtype : {DType::bf16, DType::f32}) {
      if (y_dtype == DType::bf16 && dtype() == DType::f32) continue;
      const Tensor x = random({c.rows, c.in}), w = random({c.groups * c.out, c.in}, 0.05f);
      const Tensor old = random_f32({c.rows, c.out}).to(y_dtype);
      const Segments segments = mixed_segments(c.rows);
      compare(
          [&](Ops& ops, const Put& put) -> std::vector<Tensor> {
            const Tensor y = ops.cast(put(old), y_dtype);
            ops.linear_add(y, put(x), ops.pack_linear(w, c.groups, dtype()), segments);
            return {y};
          },
          1e-5,
          y_dtype == DType::f32   ? 3e-5
          : c.rows * c.out < 1000 ? 5e-3
                                  : 1e-3);
    }
}

TEST_P(CudaOpsTest, LinearAtReleaseWidthRowsStandAlone) {
  const Tensor x = random({300, 3072}), w = random({2560, 3072}, 0.02f);
  const Operation all = [&](Ops& ops, const Put& put) -> std::vector<Tensor> {
    return {ops.linear(put(x), ops.pack_linear(w, 1, dtype()), Epilogue::swiglu7)};
  };
  const Operation some = [&](Ops& ops, const Put& put) -> std::vector<Tensor> {
    return {ops.linear(put(x).rows(16, 1), ops.pack_linear(w, 1, dtype()), Epilogue::swiglu7)};
  };
  compare(all);
  EXPECT_TRUE(same_bytes(on_gpu(all)[0].rows(16, 1), on_gpu(some)[0])) << "a row alone and among 300 differ";
}

TEST_P(CudaOpsTest, RmsNorm) {
  const Segments segments = mixed_segments(53);
  for (const int width : {1, 37, 64, 3072, 12288})
    for (const DType out : {DType::f32, DType::bf16}) {
      const Tensor x = random({53, width}), w = random_f32({3 * width}, 0.2f);
      compare(
          [&](Ops& ops, const Put& put) -> std::vector<Tensor> {
            return {ops.rms_norm(put(x), {3, put(w), 1e-6f}, segments, out)};
          },
          out == DType::bf16 ? 4e-3 : 2e-6);
    }
}

TEST_P(CudaOpsTest, Embed) {
  const Tensor table = random({11, 5});
  std::vector<std::int32_t> ids{3, 0, 10, 3};
  compare([&](Ops& ops, const Put& put) -> std::vector<Tensor> {
    return {ops.embed(put(table), put(Tensor::of<std::int32_t>(ids, {4})))};
  });
}

TEST_P(CudaOpsTest, TimeFeatures) {
  const Tensor x = random({40, 24}), features = random_f32({2, 10});
  compare([&](Ops& ops, const Put& put) -> std::vector<Tensor> {
    const Tensor y = put(x);
    ops.set_time_features(y, put(features), mixed_segments(40));
    return {y};
  });
}

TEST_P(CudaOpsTest, CastAndAdd) {
  for (const Shape& shape : {Shape{3, 5}, Shape{16, 64}, Shape{1, 1}}) {
    const Tensor x = random({shape[0], shape[1] + 1}), b = random({shape[0], shape[1] + 8});
    compare(
        [&](Ops& ops, const Put& put) -> std::vector<Tensor> {
          const Tensor a = ops.cast(put(x).columns(1, shape[1]), DType::f32);
          ops.add(a, put(b).columns(8, shape[1]));
          const Tensor same = ops.cast(put(x).columns(0, shape[1]), dtype());
          ops.add(same, put(x).columns(1, shape[1]));
          return {a, same, ops.cast(a, DType::bf16), ops.cast(a, DType::f32)};
        },
        4e-3);
  }
}

TEST_P(CudaOpsTest, CopyBetweenColumns) {
  for (const std::int64_t width : {1, 8, 21}) {
    const Tensor x = random({33, 40}), y = random({33, 56});
    compare([&](Ops& ops, const Put& put) -> std::vector<Tensor> {
      const Tensor to = put(y);
      ops.copy(to.columns(16, width), put(x).columns(8, width));
      return {to};
    });
  }
}

/// Two sites and the finish, so that coefficients are made, applied and made again.
void compare_mhc(int rows, int s, int d, const std::function<Tensor(Shape, float)>& values,
                 const std::function<Tensor(Shape, float)>& weights,
                 const std::function<void(const Operation&)>& check) {
  const int columns = 2 * s + s * s;
  const Tensor x = values({rows, s, d}, 1.0f), branch = values({rows, d}, 1.0f);
  const Tensor norm = weights({3 * s * d}, 0.2f), phi = weights({s * d, columns}, 0.5f),
               bias = weights({columns}, 1.0f), alpha = weights({3}, 1.0f), pre = weights({3 * d}, 0.2f);
  check([&](Ops& ops, const Put& put) -> std::vector<Tensor> {
    const Segments segments = mixed_segments(rows);
    const MhcWeight w{{3, put(norm), 1e-6f}, put(phi), put(alpha), put(bias)};
    const NormWeight pre_norm{3, put(pre), 1e-6f};
    const Tensor streams = put(x);
    MhcCoefficients state;
    const Tensor first = ops.mhc_site(streams, {}, state, w, pre_norm, segments);
    const Tensor second = ops.mhc_site(streams, put(branch), state, w, pre_norm, segments);
    const Tensor between = ops.cast(streams.reshape({rows, s * d}), DType::f32);
    ops.mhc_finish(streams, put(branch), state);
    return {first,
            second,
            between,
            streams.reshape({rows, s * d}),
            state.pre,
            state.post,
            state.res.reshape({rows, s * s})};
  });
}

TEST_P(CudaOpsTest, Mhc) {
  const auto values = [&](Shape shape, float scale) { return random(shape, scale); };
  const auto weights = [&](Shape shape, float scale) { return random_f32(shape, scale); };
  const auto check = [&](const Operation& o) { compare(o, 5e-6, 6e-3); };
  compare_mhc(33, 4, 64, values, weights, check);
  compare_mhc(1, 2, 37, values, weights, check);
  compare_mhc(70, 4, 3072, values, weights, check);
  compare_mhc(257, 4, 3072, values, weights, check);
}

/// Wherever a row lies in its tile, and whatever lies beside it.
TEST_P(CudaOpsTest, MhcRowsStandAlone) {
  const int s = 4, d = 3072, columns = 24, rows = 37;
  const Tensor x = random({rows, s, d}), branch = random({rows, d}), norm = random_f32({s * d}, 0.2f),
               phi = random_f32({s * d, columns}, 0.5f), bias = random_f32({columns}),
               alpha = random_f32({3}), pre = random_f32({d}, 0.2f);
  const auto results = [&](int first, int count) {
    return on_gpu([&](Ops& ops, const Put& put) -> std::vector<Tensor> {
      const MhcWeight w{{1, put(norm), 1e-6f}, put(phi), put(alpha), put(bias)};
      const NormWeight pre_norm{1, put(pre), 1e-6f};
      const Tensor streams = put(x.rows(first, count).clone());
      MhcCoefficients state;
      ops.mhc_site(streams, {}, state, w, pre_norm, {});
      const Tensor out =
          ops.mhc_site(streams, put(branch.rows(first, count).clone()), state, w, pre_norm, {});
      return {out, streams.reshape({count, s * d}), state.pre, state.post, state.res.reshape({count, s * s})};
    });
  };
  const auto all = results(0, rows);
  for (const int row : {0, 2, 7, 33, 36}) {
    const auto alone = results(row, 1);
    for (std::size_t i = 0; i < all.size(); ++i)
      EXPECT_TRUE(same_bytes(all[i].rows(row, 1), alone[i])) << "row " << row << ", result " << i;
  }
}

TEST_P(CudaOpsTest, QkNormRope) {
  for (const auto& [dim, rotated] :
       {std::array<int, 2>{128, 96}, {128, 128}, {128, 24}, {10, 6}, {256, 64}, {16, 0}}) {
    const Tensor x = random({41, 7 * dim}), q = random_f32({3 * dim}, 0.2f), k = random_f32({dim}, 0.2f),
                 rope = random_f32({41, rotated});
    compare([&](Ops& ops, const Put& put) -> std::vector<Tensor> {
      const Tensor y = put(x);
      ops.qk_norm_rope(y, 3, 2, {3, put(q), 1e-6f}, {1, put(k), 1e-6f}, put(rope), mixed_segments(41));
      return {y};
    });
  }
}

TEST_P(CudaOpsTest, QkNormRopeIntoParts) {
  for (const auto& [dim, rotated] : {std::array<int, 2>{128, 96}, {256, 64}, {10, 6}}) {
    const Tensor x = random({41, 12 * dim}), q = random_f32({3 * dim}, 0.2f), k = random_f32({dim}, 0.2f),
                 rope = random_f32({41, rotated}), first = random({41, 8 * dim + 8}),
                 second = random({41, 4 * dim});
    compare([&](Ops& ops, const Put& put) -> std::vector<Tensor> {
      const Tensor a = put(first), b = put(second);
      const std::vector<HeadPart> parts{{a.columns(0, 8 * dim), 0, 2}, {b, 2, 1}};
      ops.qk_norm_rope(put(x), 6, 3, {3, put(q), 1e-6f}, {1, put(k), 1e-6f}, put(rope), mixed_segments(41),
                       parts);
      return {a, b};
    });
  }
}

/// The routing is the CPU's on both sides: near ties may fall either way.
TEST_P(CudaOpsTest, RouteAndExperts) {
  struct Case {
    int rows, heads, experts, dim, hidden, top_k;
  };
  for (const Case& c : {Case{29, 2, 5, 8, 12, 2},
                        {1, 3, 16, 32, 40, 4},
                        {150, 2, 256, 256, 64, 6},
                        {150, 1, 256, 256, 1280, 6}}) {
    const Tensor z = random({c.rows, c.heads * c.dim}), gate = random_f32({c.heads * c.experts, c.dim}, 0.3f),
                 bias = random_f32({c.heads * c.experts}, 0.01f);
    const auto weights = [&](int in, int out) {
      return repeated({c.heads * c.experts, in, out}, 1.0f / std::sqrt(static_cast<float>(in)));
    };
    const Tensor wg = weights(c.dim, c.hidden), wu = weights(c.dim, c.hidden), wd = weights(c.hidden, c.dim);
    const Routing chosen = cpu_->route(z, gate, bias, c.heads, c.top_k, 2.5f);
    const auto routed = on_gpu([&](Ops& ops, const Put& put) -> std::vector<Tensor> {
      const Routing r = ops.route(put(z), put(gate), put(bias), c.heads, c.top_k, 2.5f);
      return {r.index, r.weight};
    });
    std::int64_t different = 0;
    for (std::int64_t i = 0; i < chosen.index.numel(); ++i)
      different += routed[0].data<std::int32_t>()[i] != chosen.index.data<std::int32_t>()[i];
    EXPECT_LE(different, chosen.index.numel() / 1000) << "of " << chosen.index.numel();
    if (different == 0) {
      EXPECT_LE(relative_error_of(doubles(routed[1]), doubles(chosen.weight)), 2e-6);
    }
    compare([&](Ops& ops, const Put& put) -> std::vector<Tensor> {
      const ExpertWeight w = ops.pack_experts(wg, wu, wd, c.heads, dtype());
      return {ops.experts(put(z), {put(chosen.index), put(chosen.weight)}, w)};
    });
  }
}

TEST_P(CudaOpsTest, NoRows) {
  const Operation all = [&](Ops& ops, const Put&) -> std::vector<Tensor> {
    const Tensor x = ops.arena().alloc(dtype(), {0, 64});
    const Tensor y = ops.linear(x, ops.pack_linear(random({32, 64}), 1, dtype()));
    return {y, ops.rms_norm(y, {1, ops.upload(random_f32({32})), 1e-6f}, {}, dtype()),
            ops.cast(y, DType::f32)};
  };
  for (const Tensor& t : on_gpu(all)) EXPECT_EQ(t.dim(0), 0);
}

INSTANTIATE_TEST_SUITE_P(Gpu, CudaOpsTest, ::testing::Values(DType::f32, DType::bf16),
                         [](const auto& info) { return std::string(name_of(info.param)); });

}  // namespace
}  // namespace magi::testing
