// SPDX-License-Identifier: Apache-2.0
// The CUDA backend's transformer operations against the CPU's: fresh inputs, poisoned outputs, odd sizes, one
// row, empty segments, and the release's widths.
#include <functional>
#include <numeric>

#include "ops/devices.h"
#include "ops_testing.h"

namespace magi::testing {
namespace {

using Put = std::function<Tensor(const Tensor&)>;
/// An operation on inputs brought to the backend by `put`; gives what is compared.
using Operation = std::function<std::vector<Tensor>(Ops&, const Put&)>;

std::vector<double> flattened(const std::vector<Tensor>& tensors) {
  std::vector<double> all;
  for (const Tensor& t : tensors) {
    const auto values = t.dtype() == DType::i32 ? std::vector<double>(t.values<std::int32_t>().begin(),
                                                                      t.values<std::int32_t>().end())
                                                : doubles(t);
    all.insert(all.end(), values.begin(), values.end());
  }
  return all;
}

class CudaOpsTest : public ::testing::TestWithParam<DType> {
 protected:
  void SetUp() override {
    if (cuda_devices().empty()) GTEST_SKIP() << "no CUDA device";
    gpu_arena_ = make_cuda_arena(0, std::size_t{1} << 30);
    gpu_ = make_cuda_ops(gpu_arena_);
  }

  DType dtype() const { return GetParam(); }
  /// Fresh values at every call.
  Tensor random(const Shape& shape, float scale = 1.0f) {
    return random_tensor(dtype(), shape, ++seed_, scale);
  }
  Tensor random_f32(const Shape& shape, float scale = 1.0f) {
    return random_tensor(DType::f32, shape, ++seed_, scale);
  }

  /// A run of random values over and over, where drawing them all would take long.
  Tensor repeated(const Shape& shape, float scale) {
    constexpr std::int64_t kPrime = 1048573;
    if (numel(shape) <= kPrime) return random(shape, scale);
    const Tensor run = random({kPrime}, scale);
    Tensor all = Tensor::empty(dtype(), shape);
    const std::size_t size = run.bytes();
    for (std::size_t at = 0; at < all.bytes(); at += size)
      std::memcpy(static_cast<std::byte*>(all.raw()) + at, run.raw(), std::min(size, all.bytes() - at));
    return all;
  }

  /// Results of the GPU, whose free scratch memory held NaN.
  std::vector<Tensor> on_gpu(const Operation& operation) {
    {
      const Tensor nan = Tensor::empty(DType::u8, {std::int64_t{192} << 20});
      std::fill_n(const_cast<std::uint8_t*>(nan.data<std::uint8_t>()), nan.numel(), 0xff);
      gpu_->copy_in(gpu_arena_.alloc(DType::u8, nan.shape()), nan);
    }
    std::vector<Tensor> results;
    for (const Tensor& t : operation(*gpu_, [&](const Tensor& host) { return gpu_->upload(host); }))
      results.push_back(gpu_->download(t));
    return results;
  }
  std::vector<Tensor> on_cpu(const Operation& operation) {
    return operation(*cpu_, [](const Tensor& host) { return host.clone(); });
  }

  void compare(const Operation& operation, double f32_tolerance = 2e-6, double bf16_tolerance = 4e-3) {
    const auto got = on_gpu(operation), want = on_cpu(operation);
    ASSERT_EQ(got.size(), want.size());
    const double limit = dtype() == DType::bf16 ? bf16_tolerance : f32_tolerance;
    for (std::size_t i = 0; i < got.size(); ++i) {
      ASSERT_EQ(got[i].shape(), want[i].shape());
      const double error = relative_error_of(flattened({got[i]}), flattened({want[i]}));
      std::printf("result %zu: relative L2 %.3g (limit %.3g)\n", i, error, limit);
      EXPECT_TRUE(error <= limit) << "result " << i << ": " << error << ", limit " << limit;
    }
    const auto again = on_gpu(operation);
    for (std::size_t i = 0; i < got.size(); ++i) EXPECT_TRUE(same_bytes(got[i], again[i])) << "result " << i;
  }

  static double relative_error_of(const Doubles& got, const Doubles& want) {
    double difference = 0, size = 0;
    for (std::size_t i = 0; i < got.size(); ++i) {
      difference += (got[i] - want[i]) * (got[i] - want[i]);
      size += want[i] * want[i];
    }
    return std::sqrt(difference / (size > 0 ? size : 1));
  }

  unsigned seed_ = static_cast<unsigned>(::testing::UnitTest::GetInstance()->random_seed()) * 1000 + 7;
  Arena cpu_arena_ = Arena::on_host(std::size_t{4} << 30);
  std::unique_ptr<Ops> cpu_ = make_cpu_ops(cpu_arena_);
  Arena gpu_arena_ = Arena::counting({});
  std::unique_ptr<Ops> gpu_;
};

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

TEST_P(CudaOpsTest, Attention) {
  struct Case {
    int heads, kv_heads, dim;
    bool causal;
    int gate;  ///< 0, 1 a head, 2 a channel
  };
  for (const Case& c : {Case{6, 2, 128, false, 1},
                        {4, 4, 128, true, 0},
                        {4, 2, 256, true, 2},
                        {3, 1, 24, false, 2},
                        {2, 2, 16, true, 1},
                        {1, 1, 640, false, 0}}) {
    const int rows = 203;
    const Tensor qkv = random({rows, (c.heads + 2 * c.kv_heads) * c.dim}),
                 gate = random({rows, c.gate == 2 ? c.heads * c.dim : c.heads}),
                 sinks = random_f32({2, c.heads});
    const std::vector<RowRange> samples{{0, 130}, {130, 130}, {130, 131}, {131, rows}};
    compare(
        [&](Ops& ops, const Put& put) -> std::vector<Tensor> {
          AttentionOptions o;
          o.heads = c.heads;
          o.kv_heads = c.kv_heads;
          o.head_dim = c.dim;
          o.causal = c.causal;
          if (c.gate) o.gate = put(gate);
          if (c.heads > 2) o.sinks = put(sinks);
          return {ops.attention(put(qkv), samples, o)};
        },
        3e-6, 8e-3);
  }
}

/// On several matrices' rows, as on other GPUs; of each kernel.
TEST_P(CudaOpsTest, ResultsSpreadOverTensors) {
  constexpr std::int64_t kRows = 203;
  const std::int64_t sizes[] = {7, 0, 120, 76};
  for (const int dim : {128, 64, 24}) {
    const Tensor qkv = random({kRows, 4 * dim}), gate = random({kRows, 2}), space = random({kRows, 3 * dim});
    const std::vector<RowRange> samples{{0, 130}, {130, kRows}};
    const auto attend = [&](bool spread) {
      return [&, spread](Ops& ops, const Put& put) -> std::vector<Tensor> {
        AttentionOptions o;
        o.heads = 2;
        o.kv_heads = 1;
        o.head_dim = dim;
        o.gate = put(gate);
        std::vector<Tensor> y;
        for (const std::int64_t rows : sizes) y.push_back(put(space).rows(0, rows).columns(dim, 2 * dim));
        if (spread) {
          ops.attention_into(put(qkv), samples, o, y);
          return y;
        }
        const Tensor whole = ops.attention(put(qkv), samples, o);
        std::int64_t row = 0;
        for (Tensor& part : y) {
          part = whole.rows(row, part.dim(0));
          row += part.dim(0);
        }
        return y;
      };
    };
    const auto spread = on_gpu(attend(true)), whole = on_gpu(attend(false));
    for (std::size_t i = 0; i < whole.size(); ++i) EXPECT_TRUE(same_bytes(spread[i], whole[i])) << dim;
  }
}

TEST_P(CudaOpsTest, WindowAttention) {
  for (const int dim : {128, 64, 16}) {
    const auto window = WindowOptions::whole({5, 6, 7}, {2, 2, 3}, {1, 1, 1});
    const BlockGrid grid(window.grid, window.block);
    const std::int64_t video = window.keys.end, others = 13, q_size = 2 * dim;
    const Tensor qkv = random({video + others, 4 * dim}), gate = random({video + others, 2}),
                 sinks = random_f32({2, 2});
    const auto options = [&](const Put& put, RowRange rows) {
      AttentionOptions o;
      o.heads = 2;
      o.kv_heads = 1;
      o.head_dim = dim;
      o.gate = put(gate).rows(rows.first, rows.size());
      o.sinks = put(sinks);
      return o;
    };
    // A share of the blocks, with the keys that they reach.
    const auto windows = [&](RowRange blocks) {
      return [&, blocks](Ops& ops, const Put& put) -> std::vector<Tensor> {
        WindowOptions share = window;
        share.blocks = blocks;
        share.keys = grid.reach(blocks, window.radius);
        const RowRange rows = grid.rows(blocks);
        const Tensor all = put(qkv), from = all.columns(q_size, 2 * dim);
        Tensor kv = ops.arena().alloc(qkv.dtype(), {share.keys.size() + others, 2 * dim});
        ops.copy(kv.rows(0, share.keys.size()), from.rows(share.keys.first, share.keys.size()));
        ops.copy(kv.rows(share.keys.size(), others), from.rows(video, others));
        Tensor y = ops.arena().alloc(qkv.dtype(), {rows.size(), q_size});
        ops.window_attention(all.columns(0, q_size).rows(rows.first, rows.size()), kv, share,
                             options(put, rows), y);
        return {y};
      };
    };
    compare(windows(window.blocks), 3e-6, 8e-3);
    const Tensor whole = on_gpu(windows(window.blocks)).front();
    for (const RowRange blocks : {RowRange{0, 7}, RowRange{7, 8}, RowRange{8, grid.size()}}) {
      const RowRange rows = grid.rows(blocks);
      EXPECT_TRUE(same_bytes(on_gpu(windows(blocks)).front(), whole.rows(rows.first, rows.size())))
          << "blocks " << blocks.first << " to " << blocks.end;
    }
    // What attends everything: the parts in one tensor or in several, each row with others or alone.
    const auto parted = [&](std::vector<std::size_t> cuts, RowRange rows) {
      return [&, cuts, rows](Ops& ops, const Put& put) -> std::vector<Tensor> {
        std::vector<RowRange> parts;
        for (const RowRange& blocks : window_parts(grid.size())) parts.push_back(grid.rows(blocks));
        parts.push_back({video, video + others});
        const Tensor all = put(qkv), kv = all.columns(q_size, 2 * dim),
                     q = all.columns(0, q_size).rows(rows.first, rows.size());
        std::vector<Tensor> partials;
        std::size_t first = 0;
        std::vector<std::size_t> ends = cuts;
        ends.push_back(parts.size());
        for (const std::size_t end : ends) {
          partials.push_back(ops.attention_partials(q, kv, std::span(parts).subspan(first, end - first),
                                                    options(put, rows)));
          first = end;
        }
        Tensor y = ops.arena().alloc(qkv.dtype(), {rows.size(), q_size});
        ops.merge_attention(partials, options(put, rows), y);
        return {y};
      };
    };
    const RowRange text{video, video + others};
    compare(parted({}, text), 3e-6, 8e-3);
    const Tensor merged = on_gpu(parted({}, text)).front();
    EXPECT_TRUE(same_bytes(on_gpu(parted({1, 1, 17}, text)).front(), merged));
    EXPECT_TRUE(same_bytes(on_gpu(parted({20}, {video + 7, video + 8})).front(), merged.rows(7, 1)));
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
