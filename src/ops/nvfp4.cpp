// SPDX-License-Identifier: Apache-2.0
// Codes, and weights from their bytes.
#include "ops/nvfp4.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

#include "ops/nvfp4_codes.h"
#include "ops/ops.h"

namespace magi {
namespace {

/// 16 values of a block, `half_scale` = half of both scales.
template <typename T>
MAGI2_INLINE void decode_block(const std::byte* values, float half_scale, T* to) {
  std::uint32_t words[2];
  std::memcpy(words, values, sizeof words);
  UInts word, shift;
  for (std::size_t k = 0; k < 16; ++k) {
    word[k] = words[kNibblePlace.word[k]];
    shift[k] = static_cast<std::uint32_t>(kNibblePlace.shift[k]);
  }
  const UInts code = word >> shift;
  const Floats magnitude =
      __builtin_convertvector(std::bit_cast<Ints>(doubled_magnitude(code & 7u)), Floats) * half_scale;
  store(to, std::bit_cast<Floats>(std::bit_cast<UInts>(magnitude) | (code & 8u) << 28));
}

/// `blocks` blocks one after the other.
template <typename T>
MAGI2_INLINE void decode_run(const std::byte* values, const float* half_scales, std::int64_t blocks, T* to) {
  for (std::int64_t b = 0; b < blocks; ++b)
    decode_block(values + b * 8, half_scales[b], to + b * kNvfp4Block);
}
MAGI2_SIMD void decode_f32(const std::byte* values, const float* half_scales, std::int64_t blocks,
                           float* to) {
  decode_run(values, half_scales, blocks, to);
}
MAGI2_SIMD void decode_bf16(const std::byte* values, const float* half_scales, std::int64_t blocks,
                            bf16* to) {
  decode_run(values, half_scales, blocks, to);
}
void decode(const std::byte* values, const float* half_scales, std::int64_t blocks, float* to) {
  decode_f32(values, half_scales, blocks, to);
}
void decode(const std::byte* values, const float* half_scales, std::int64_t blocks, bf16* to) {
  decode_bf16(values, half_scales, blocks, to);
}

/// Values of all 256 codes.
const std::array<float, 256>& e4m3_values() {
  static const std::array<float, 256> values = [] {
    std::array<float, 256> table{};
    for (std::size_t code = 0; code < table.size(); ++code)
      table[code] = e4m3_value(static_cast<std::uint8_t>(code));
    return table;
  }();
  return values;
}

/// Rows of expert tiles → their blocks one after the other as nvfp4_nibble says, in place.
MAGI2_SIMD void order_blocks(std::byte* values, std::int64_t rows) {
  using Words = std::uint32_t __attribute__((vector_size(Nvfp4Layout::kRowBytes)));
  using Bytes = std::uint8_t __attribute__((vector_size(Nvfp4Layout::kRowBytes)));
  for (std::int64_t r = 0; r < rows; ++r) {
    Words words, nibbles[2];
    std::memcpy(&words, values + r * Nvfp4Layout::kRowBytes, sizeof words);
    for (int block = 0; block < 2; ++block) {
      nibbles[block] = Words{};
      for (int i = 0; i < 2; ++i) {
        const Words pair = Nvfp4Layout::pair(words, 2 * block + i);
        nibbles[block] |= ((pair >> 12 & 0x00080008u) | (pair >> 6 & 0x00070007u)) << (4 * i);
      }
    }
    // Bytes 0 and 2 of each word are those of depths 2q and 2q+1: of block 0 or 2, of block 1 or 3.
    const auto even = std::bit_cast<Bytes>(nibbles[0]), odd = std::bit_cast<Bytes>(nibbles[1]);
    const Bytes row =
        __builtin_shufflevector(even, odd, 0, 2, 8, 10, 16, 18, 24, 26, 32, 34, 40, 42, 48, 50, 56, 58, 4, 6,
                                12, 14, 20, 22, 28, 30, 36, 38, 44, 46, 52, 54, 60, 62);
    std::memcpy(values + r * Nvfp4Layout::kRowBytes, &row, sizeof row);
  }
}

/// One column. `load(block, count, values)` gives the values of `count` blocks one after the other (there is
/// room for a multiple of four); scale(block) is a block's. Blocks are gathered in runs, so that the
/// vectorised part is called for many of them.
template <typename T, typename Load, typename Scale>
void decode_column(std::int64_t depth, float matrix_scale, const Load& load, const Scale& scale, T* to,
                   std::int64_t pitch) {
  constexpr std::int64_t kRun = 32;
  std::byte values[kRun * 8];
  float half_scales[kRun];
  T decoded[kRun * kNvfp4Block];
  for (std::int64_t k = 0; k < depth; k += kRun * kNvfp4Block) {
    const std::int64_t left = std::min(depth - k, kRun * kNvfp4Block),
                       blocks = (left + kNvfp4Block - 1) / kNvfp4Block;
    load(k / kNvfp4Block, blocks, values);
    for (std::int64_t b = 0; b < blocks; ++b)
      half_scales[b] = 0.5f * scale(k / kNvfp4Block + b) * matrix_scale;
    decode(values, half_scales, blocks, left % kNvfp4Block == 0 ? to + k : decoded);
    if (left % kNvfp4Block != 0) std::copy_n(decoded, left, to + k);
  }
  std::fill(to + depth, to + pitch, T{});
}

template <typename T>
void dequantize_expert_columns(const std::byte* expert, const Nvfp4Layout& layout, ExpertMatrix m,
                               std::int64_t first, std::int64_t count, T* to, std::int64_t pitch) {
  float scale;
  std::memcpy(&scale, expert + layout.matrix_scale_at(m), sizeof scale);
  for (std::int64_t n = first; n < first + count; ++n) {
    const auto load = [&](std::int64_t block, std::int64_t blocks, std::byte* values) {
      constexpr std::int64_t kRow = Nvfp4Layout::kRowBytes, kBlocks = Nvfp4Layout::kRowBlocks;
      for (std::int64_t b = 0; b < blocks; b += kBlocks)
        std::memcpy(values + b * 8, expert + layout.row_at(m, n, block + b), kRow);
      order_blocks(values, (blocks + kBlocks - 1) / kBlocks);
    };
    decode_column(
        layout.depth(m), scale, load,
        [&](std::int64_t b) {
          return Nvfp4Layout::scale(static_cast<std::uint8_t>(expert[layout.scale_at(m, n, b)]));
        },
        to + (n - first) * pitch, pitch);
  }
}

}  // namespace

// ---------------------------------------------------------------- codes

float e2m1_value(unsigned code) {
  constexpr std::array<float, 8> kValues{0, 0.5f, 1, 1.5f, 2, 3, 4, 6};
  const float value = kValues[code & 7];
  return code & 8 ? -value : value;
}

unsigned e2m1_code(float value) {
  const auto code = static_cast<unsigned>(magnitude_code(std::abs(value), 1.0f));
  return value < 0 && code > 0 ? code | 8 : code;
}

float e4m3_value(std::uint8_t code) {
  const int exponent = code >> 3 & 15, mantissa = code & 7;
  if (exponent == 15 && mantissa == 7) return std::numeric_limits<float>::quiet_NaN();
  const float value = exponent == 0 ? std::ldexp(static_cast<float>(mantissa), -9)
                                    : std::ldexp(static_cast<float>(8 + mantissa), exponent - 10);
  return code & 0x80 ? -value : value;
}

std::uint8_t e4m3_code(float value) {
  const std::uint8_t sign = std::signbit(value) ? 0x80 : 0;
  const float a = std::abs(value);
  if (std::isnan(value)) return sign | 0x7f;
  if (a >= 448) return sign | 0x7e;
  if (a < kE4m3SmallestNormal) return static_cast<std::uint8_t>(sign | std::lrint(a * 0x1p9f));
  const auto bits = std::bit_cast<std::uint32_t>(a);
  const std::uint32_t rounded =
      (bits + 0x7ffffu + (bits >> 20 & 1u)) >> 20;  // sign, exponent, 3 bits of mantissa
  return static_cast<std::uint8_t>(sign | std::min(rounded - ((127u - 7u) << 3), 0x7eu));
}

// ---------------------------------------------------------------- experts

float Nvfp4Layout::scale(std::uint8_t byte) {
  return std::bit_cast<float>((byte + kScaleBias) << 20);
}

std::uint8_t Nvfp4Layout::scale_byte(float scale) {
  return scale == 0 ? 0 : static_cast<std::uint8_t>((std::bit_cast<std::uint32_t>(scale) >> 20) - kScaleBias);
}

Nvfp4Layout nvfp4_layout(const ExpertWeight& w) {
  return {w.experts, w.dim, w.hidden};
}

PlainExperts dequantize_experts(const std::byte* from, std::int64_t n, const Nvfp4Layout& layout) {
  PlainExperts plain{Tensor::empty(DType::bf16, {n, layout.dim, layout.hidden}),
                     Tensor::empty(DType::bf16, {n, layout.dim, layout.hidden}),
                     Tensor::empty(DType::bf16, {n, layout.hidden, layout.dim})};
  constexpr std::int64_t kColumns = 16;  // unpacked at a time, and then turned into rows
  const std::int64_t size = layout.dim * layout.hidden;
  bf16* const to[] = {plain.gate.data<bf16>(), plain.up.data<bf16>(), plain.down.data<bf16>()};
#pragma omp parallel for schedule(dynamic)
  for (std::int64_t e = 0; e < n; ++e) {
    std::vector<bf16> columns(static_cast<std::size_t>(kColumns * std::max(layout.dim, layout.hidden)));
    for (const ExpertMatrix m : {ExpertMatrix::gate, ExpertMatrix::up, ExpertMatrix::down}) {
      const std::int64_t depth = layout.depth(m), width = layout.columns(m);
      bf16* matrix = to[static_cast<std::size_t>(m)] + e * size;
      for (std::int64_t n0 = 0; n0 < width; n0 += kColumns) {
        const std::int64_t count = std::min<std::int64_t>(kColumns, width - n0);
        dequantize_columns(from + e * layout.expert_bytes(), layout, m, n0, count, columns.data(), depth);
        for (std::int64_t k = 0; k < depth; ++k)
          for (std::int64_t i = 0; i < count; ++i)
            matrix[k * width + n0 + i] = columns[static_cast<std::size_t>(i * depth + k)];
      }
    }
  }
  return plain;
}

void dequantize_columns(const std::byte* expert, const Nvfp4Layout& layout, ExpertMatrix m,
                        std::int64_t first, std::int64_t count, float* to, std::int64_t pitch) {
  dequantize_expert_columns(expert, layout, m, first, count, to, pitch);
}
void dequantize_columns(const std::byte* expert, const Nvfp4Layout& layout, ExpertMatrix m,
                        std::int64_t first, std::int64_t count, bf16* to, std::int64_t pitch) {
  dequantize_expert_columns(expert, layout, m, first, count, to, pitch);
}

// ---------------------------------------------------------------- single matrices

Tensor dequantize_matrix(const Nvfp4Matrix& m) {
  require(m.packed.rank() == 2 && m.packed.dim(1) % 9 == 0 && m.packed.contiguous() &&
              m.matrix_scale.numel() == 1,
          "NVFP4: {} is no packed matrix", to_string(m.packed.shape()));
  const std::int64_t columns = m.packed.dim(0), blocks = m.packed.dim(1) / 9, depth = blocks * kNvfp4Block;
  Tensor result = Tensor::empty(DType::bf16, {columns, depth});
  const auto* packed = static_cast<const std::byte*>(m.packed.raw());
  const float scale = m.matrix_scale.data<float>()[0];
  const std::array<float, 256>& e4m3 = e4m3_values();
  bf16* to = result.data<bf16>();
#pragma omp parallel for schedule(static)
  for (std::int64_t n = 0; n < columns; ++n) {
    const std::byte* row = packed + n * blocks * 9;
    decode_column(
        depth, scale,
        [&](std::int64_t block, std::int64_t count, std::byte* run) {
          std::memcpy(run, row + block * 8, static_cast<std::size_t>(count) * 8);
        },
        [&](std::int64_t b) { return e4m3[static_cast<std::size_t>(row[blocks * 8 + b])]; }, to + n * depth,
        depth);
  }
  return result;
}

}  // namespace magi
