// SPDX-License-Identifier: Apache-2.0
// The GPU's experts from NVFP4 weights against its experts from the same numbers: equal bits.
#include <algorithm>
#include <cstring>

#include "ops/devices.h"
#include "ops/nvfp4.h"
#include "ops_testing.h"

namespace magi::testing {
namespace {

struct Sizes {
  std::int64_t heads, experts, dim, hidden, top_k;
};

/// How rows choose among E experts: different ones, the same ones, or a few of them.
enum class Choice : std::uint8_t { spread, same, few };

class CudaExpertsTest : public ::testing::TestWithParam<DType> {
 protected:
  void SetUp() override {
    if (cuda_devices().empty()) GTEST_SKIP() << "no CUDA device";
    arena_ = make_cuda_arena(0, std::size_t{1} << 30);
    ops_ = make_cuda_ops(arena_);
  }

  /// Any value code, any scale that is a number, matrix scales of a size at which swiglu7 neither vanishes
  /// nor always clips.
  ExpertWeight random_bytes(const Sizes& s) {
    ExpertWeight w;
    w.heads = s.heads, w.experts = s.experts, w.dim = s.dim, w.hidden = s.hidden, w.dtype = GetParam();
    const Nvfp4Layout layout = nvfp4_layout(w);
    w.nvfp4 = Tensor::zeros(DType::u8, {s.heads, layout.head_bytes()});
    auto* bytes = reinterpret_cast<std::byte*>(w.nvfp4.data<std::uint8_t>());
#pragma omp parallel for
    for (std::int64_t e = 0; e < s.heads * s.experts; ++e) {
      std::byte* expert = bytes + e * layout.expert_bytes();
      std::mt19937_64 engine(static_cast<std::uint64_t>(e) + 1);
      for (const ExpertMatrix m : {ExpertMatrix::gate, ExpertMatrix::up, ExpertMatrix::down}) {
        const float scale = std::ldexp(1.0f, m == ExpertMatrix::down ? -12 : -10 - static_cast<int>(e % 3));
        std::memcpy(expert + layout.matrix_scale_at(m), &scale, sizeof scale);
        for (std::int64_t column = 0; column < layout.columns(m); ++column)
          for (std::int64_t block = 0; block < layout.blocks(m); ++block) {
            const std::uint64_t values = engine();
            std::byte* row = expert + layout.row_at(m, column, block);
            for (std::int64_t k = 0; k < 16; ++k) {
              const auto pair = static_cast<std::uint32_t>(values >> (4 * k) & 8) << 12 |
                                static_cast<std::uint32_t>(values >> (4 * k) & 7) << 6;
              std::uint32_t word;
              std::memcpy(&word, row + Nvfp4Layout::word_of(block, k), sizeof word);
              word |= Nvfp4Layout::place(pair << (k % 2 * 16), Nvfp4Layout::pair_of(block, k));
              std::memcpy(row + Nvfp4Layout::word_of(block, k), &word, sizeof word);
            }
            const float scale_of_block = e4m3_value(static_cast<std::uint8_t>(1 + engine() % 126));
            expert[layout.scale_at(m, column, block)] =
                static_cast<std::byte>(Nvfp4Layout::scale_byte(scale_of_block));
          }
      }
    }
    return w;
  }

  Routing routing(const Sizes& s, std::int64_t rows, Choice choice) {
    Routing r{Tensor::empty(DType::i32, {rows, s.heads, s.top_k}),
              random_tensor(DType::f32, {rows, s.heads, s.top_k}, 3)};
    for (std::int64_t i = 0; i < rows * s.heads; ++i)
      for (std::int64_t k = 0; k < s.top_k; ++k) {
        const std::int64_t row = choice == Choice::same ? 0 : choice == Choice::few ? i / 7 % 3 : i * 5;
        r.index.data<std::int32_t>()[i * s.top_k + k] = static_cast<std::int32_t>((row + k) % s.experts);
      }
    return r;
  }

  void expect_same_bits(const ExpertWeight& packed, const ExpertWeight& plain, const Sizes& s,
                        std::int64_t rows, Choice choice) {
    const Tensor z = random_tensor(GetParam(), {rows, s.heads * s.dim}, static_cast<unsigned>(rows));
    const Routing host = routing(s, rows, choice);
    const Tensor on_gpu = ops_->upload(z);
    const Routing r{ops_->upload(host.index), ops_->upload(host.weight)};
    const Tensor want = ops_->download(ops_->experts(on_gpu, r, plain)),
                 got = ops_->download(ops_->experts(on_gpu, r, packed));
    EXPECT_GT(relative_error(want, Doubles(static_cast<std::size_t>(want.numel()), 1e-3)), 0.1);
    for (const double v : doubles(want)) ASSERT_TRUE(std::isfinite(v));
    EXPECT_TRUE(same_bytes(got, want))
        << rows << " rows, " << s.experts << " experts " << s.dim << "×" << s.hidden << ", choice "
        << static_cast<int>(choice) << ": relative L2 " << relative_error(got, doubles(want));
  }

  void check(const Sizes& s, const std::vector<std::int64_t>& rows) {
    const ExpertWeight host = random_bytes(s);
    const PlainExperts numbers = dequantize_experts(static_cast<const std::byte*>(host.nvfp4.raw()),
                                                    s.heads * s.experts, nvfp4_layout(host));
    const ExpertWeight plain =
                           ops_->pack_experts(numbers.gate, numbers.up, numbers.down, s.heads, GetParam()),
                       packed = ops_->upload_experts(host);
    for (const std::int64_t n : rows)
      for (const Choice choice : {Choice::spread, Choice::same, Choice::few})
        expect_same_bits(packed, plain, s, n, choice);
  }

  Arena arena_ = Arena::counting({});
  std::unique_ptr<Ops> ops_;
};

// All 256 experts, of which rows use all, 6 or 8; 1000 rows are up to eight work items of 128 for one expert.
TEST_P(CudaExpertsTest, ReleaseSizesFromNvfp4AreTheSameBits) {
  if (GetParam() == DType::f32) GTEST_SKIP() << "f32 has no kernel of its own for these sizes";
  check({1, 256, 256, 1280, 6}, {1, 17, 64, 65, 129, 1000});
}

TEST_P(CudaExpertsTest, OneChunkAndTwoAndThree) {
  for (const std::int64_t hidden : {64, 128, 192}) check({3, 256, 256, hidden, 6}, {333});
}

TEST_P(CudaExpertsTest, OddSizesFromNvfp4AreTheSameBits) {
  for (const Sizes& s : {Sizes{1, 1, 4, 6, 1}, {2, 5, 24, 40, 3}, {2, 3, 48, 100, 2}, {1, 8, 200, 72, 2}})
    check(s, {1, 37, 200});
}

INSTANTIATE_TEST_SUITE_P(Gpu, CudaExpertsTest, ::testing::Values(DType::f32, DType::bf16),
                         [](const auto& info) { return std::string(name_of(info.param)); });

}  // namespace
}  // namespace magi::testing
