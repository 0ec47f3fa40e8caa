// SPDX-License-Identifier: Apache-2.0
// NVFP4: weights in four bits. A value is an E2M1 number (0, ½, 1, 1½, 2, 3, 4, 6 and negatives) times the
// E4M3 scale of its block of 16 along the depth (the axis that a product sums over) times the scale of its
// matrix, a power of two. E2M1·E4M3 has at most six significant bits, so every weight is exact in bf16, and
// the scales may be folded in anywhere.
//
// The bytes are the same on every backend, in host memory and in files: Nvfp4Layout alone knows where a value
// lies.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include "core/tensor.h"

namespace magi {

#ifdef __CUDACC__  // kernels ask the layout too
#define MAGI2_CALLABLE __host__ __device__
#else
#define MAGI2_CALLABLE
#endif

struct ExpertWeight;

inline constexpr std::int64_t kNvfp4Block = 16;

/// Value of an E2M1 code: bit 3 sign, bits 2–1 exponent, bit 0 mantissa. Higher bits must be 0.
float e2m1_value(unsigned code);
/// Nearest E2M1 code, ties to the even one; beyond 6: ±6; zero always as code 0.
unsigned e2m1_code(float value);
/// Value of an E4M3 code (bias 7, no infinities; 0x7f and 0xff are NaN).
float e4m3_value(std::uint8_t code);
/// Nearest E4M3 code, ties to even; beyond 448: ±448.
std::uint8_t e4m3_code(float value);
/// Which of a block's 16 nibbles holds value `k`, where a block lies by itself: nibble i is byte i / 2, its
/// low half where i is even.
constexpr int nvfp4_nibble(int k) {
  return k % 8 * 2 + k / 8;
}

/// Which matrix of an expert: gate and up [hidden columns, dim deep], down [dim columns, hidden deep].
enum class ExpertMatrix : std::uint8_t { gate, up, down };

/// Where an expert's numbers lie. An expert is one run of bytes, the experts of a head lie one after the
/// other, and heads too: both are units of streaming and of sharing out.
///
/// Matrices are cut into tiles of 64 columns by 64 of depth, padded with zeros, which follow each other as
/// the expert FFN consumes them: for each 64 hidden columns the tiles of gate and up (gate, up, gate, up …
/// along the depth), then those of down whose depth these columns are. A tile is 2048 bytes of values, 32 a
/// column, then 256 of scales, 4 a column. Within a column's 32 bytes the order is that of the tensor cores'
/// operand: two words for each of the four threads that share a column, thread q's being depths {2q, 2q+1,
/// 2q+8, 2q+9} of blocks 0 and 1, then of 2 and 3. Columns are swapped within groups of four, so that no
/// order of reading them meets one memory bank twice. Behind the tiles are the matrices' scales.
///
/// A word's bits are in the order in which it costs a GPU least to make bf16 of them: see `pair`. A scale's
/// byte is what has E4M3's numbers without its special cases: see `scale`.
struct Nvfp4Layout {
  std::int64_t experts = 0;  ///< a head
  std::int64_t dim = 0;      ///< d_head
  std::int64_t hidden = 0;   ///< d_expert

  static constexpr std::int64_t kTile = 64;  ///< columns and depth of a tile
  static constexpr std::int64_t kTileValueBytes = 2048;
  static constexpr std::int64_t kTileBytes = 2304;  ///< values, then scales
  static constexpr std::int64_t kRowBytes = 32;     ///< values of one column of a tile
  static constexpr std::int64_t kRowBlocks = 4;     ///< blocks of one column of a tile

  MAGI2_CALLABLE constexpr std::int64_t columns(ExpertMatrix m) const {
    return m == ExpertMatrix::down ? dim : hidden;
  }
  MAGI2_CALLABLE constexpr std::int64_t depth(ExpertMatrix m) const {
    return m == ExpertMatrix::down ? hidden : dim;
  }
  MAGI2_CALLABLE constexpr std::int64_t blocks(ExpertMatrix m) const {
    return (depth(m) + kNvfp4Block - 1) / kNvfp4Block;
  }

  /// Bytes from the expert's first one to the 32 bytes of the values of `column` in the tile of `block`.
  MAGI2_CALLABLE constexpr std::int64_t row_at(ExpertMatrix m, std::int64_t column,
                                               std::int64_t block) const {
    const std::int64_t row = column % kTile;
    return tile_at(m, column, block) + (row ^ (row / 4 % 4)) * kRowBytes;
  }
  /// Where among these 32 is the word of value `k` (0…15) of a block.
  MAGI2_CALLABLE static constexpr std::int64_t word_of(std::int64_t block, std::int64_t k) {
    return k % 8 / 2 * 8 + block % 4 / 2 * 4;
  }
  /// Which of the word's four pairs of values (2q, 2q+1 or 2q+8, 2q+9) it is in; the odd one is in the upper
  /// half of `pair`.
  MAGI2_CALLABLE static constexpr int pair_of(std::int64_t block, std::int64_t k) {
    return static_cast<int>(block % 2 * 2 + k / 8);
  }
  /// A pair of a word: in each half E2M1's sign in bit 15 and the rest in bits 8…6, which makes it 2^-126
  /// times the number in bf16. Words are unsigned or vectors of unsigned.
  template <typename Word>
  MAGI2_CALLABLE static constexpr Word pair(Word word, int p) {
    switch (p) {
      case 0:
        return word & kPairBits;
      case 1:
        return (word & 0x001b001bu) * 0x4108u & kPairBits;  // three shifts at once: 3, 8 and 14
      case 2:
        return (word << 10 | word >> 22) & kPairBits;
      default:
        return (word << 13 | word >> 19) & kPairBits;
    }
  }
  /// The bits of a word that `pair` finds there; the four pairs share none.
  MAGI2_CALLABLE static constexpr std::uint32_t place(std::uint32_t pair, int p) {
    switch (p) {
      case 0:
        return pair;
      case 1:
        return (pair >> 14 & 0x00020002u) | (pair >> 8 & 0x00010001u) | (pair >> 3 & 0x00180018u);
      case 2:
        return pair >> 10 | pair << 22;
      default:
        return pair >> 13 | pair << 19;
    }
  }
  static constexpr std::uint32_t kPairBits = 0x81c081c0u;

  /// What a scale's byte stands for: b is (1 + b%8/8)·2^(b/8 − 9). All E4M3 numbers above zero are among
  /// these, up to 142 for 448.
  static float scale(std::uint8_t byte);
  /// Of an E4M3 number, not negative. Zero, whose block has nothing but zeros, becomes 0 as well.
  static std::uint8_t scale_byte(float scale);
  static constexpr std::uint32_t kScaleBias = (127 - 9) * 8;  ///< plus byte: f32 from bit 20 on
  /// Bytes from the expert's first one to the block's scale.
  MAGI2_CALLABLE constexpr std::int64_t scale_at(ExpertMatrix m, std::int64_t column,
                                                 std::int64_t block) const {
    return tile_at(m, column, block) + kTileValueBytes + column % kTile * kRowBlocks + block % kRowBlocks;
  }
  /// … to the matrix' scale, f32.
  MAGI2_CALLABLE constexpr std::int64_t matrix_scale_at(ExpertMatrix m) const {
    return 3 * tiles(dim) * tiles(hidden) * kTileBytes + 4 * static_cast<std::int64_t>(m);
  }
  /// A multiple of 128.
  MAGI2_CALLABLE constexpr std::int64_t expert_bytes() const {
    return (matrix_scale_at(ExpertMatrix::gate) + 16 + 127) / 128 * 128;
  }
  MAGI2_CALLABLE constexpr std::int64_t head_bytes() const { return experts * expert_bytes(); }

 private:
  MAGI2_CALLABLE static constexpr std::int64_t tiles(std::int64_t n) { return (n + kTile - 1) / kTile; }
  MAGI2_CALLABLE constexpr std::int64_t tile_at(ExpertMatrix m, std::int64_t column,
                                                std::int64_t block) const {
    const std::int64_t across = column / kTile, down = block / kRowBlocks, wide = tiles(dim);
    const std::int64_t tile = m == ExpertMatrix::down
                                  ? (3 * down + 2) * wide + across
                                  : 3 * across * wide + 2 * down + static_cast<std::int64_t>(m);
    return tile * kTileBytes;
  }
};

#undef MAGI2_CALLABLE

Nvfp4Layout nvfp4_layout(const ExpertWeight& w);

/// How far quantised weights are from the original ones.
struct QuantError {
  double squared_error = 0, squared_norm = 0;
  void add(const QuantError& other) {
    squared_error += other.squared_error;
    squared_norm += other.squared_norm;
  }
  /// √(Σ error² / Σ weight²), 0 for zeros.
  double relative_rms() const;
};

/// W_gate, W_up [n, dim, hidden], W_down [n, hidden, dim] of n experts on the host, input-major, any float
/// dtype → their NVFP4 bytes, one expert after the other, at `to` (n · expert_bytes(); padding is zero).
/// Throws Error for a value that is not finite or beyond ±2^120. The same bytes on any number of threads and
/// any instruction set.
QuantError quantize_experts(const Tensor& gate, const Tensor& up, const Tensor& down, std::byte* to);

/// The reverse: bf16 tensors [n, dim, hidden], [n, dim, hidden], [n, hidden, dim] of experts that lie one
/// after the other.
struct PlainExperts {
  Tensor gate, up, down;
};
PlainExperts dequantize_experts(const std::byte* from, std::int64_t n, const Nvfp4Layout& layout);

/// All experts of a layer on the host, to be given to Ops::upload_experts. `gate` … as Ops::pack_experts
/// takes them.
ExpertWeight nvfp4_experts(const Tensor& gate, const Tensor& up, const Tensor& down, std::int64_t heads,
                           DType dtype);

/// A matrix [columns, depth] as linear layers have it, depth a multiple of 16: of each column the values
/// (eight bytes a block, nibbles as nvfp4_nibble says), then the blocks' scales, E4M3.
struct Nvfp4Matrix {
  Tensor packed;        ///< u8 [columns, depth/16·9]
  Tensor matrix_scale;  ///< f32 [1]
};
Nvfp4Matrix quantize_matrix(const Tensor& matrix, QuantError* error = nullptr);
/// bf16 [columns, depth].
Tensor dequantize_matrix(const Nvfp4Matrix& matrix);

/// Depths 0 … depth−1 of `count` columns from `first` on, for kernels: to [count, pitch], zeros behind
/// `depth`. `expert`: an expert's first byte.
void dequantize_columns(const std::byte* expert, const Nvfp4Layout& layout, ExpertMatrix m,
                        std::int64_t first, std::int64_t count, float* to, std::int64_t pitch);
void dequantize_columns(const std::byte* expert, const Nvfp4Layout& layout, ExpertMatrix m,
                        std::int64_t first, std::int64_t count, bf16* to, std::int64_t pitch);

}  // namespace magi
