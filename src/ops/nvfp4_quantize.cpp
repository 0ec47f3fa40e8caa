// SPDX-License-Identifier: Apache-2.0
// Choice of scales: a block's is the E4M3 number nearest to a sixth of its largest magnitude, so that this
// one becomes 6; the matrix' is the smallest power of two for which none of them exceeds 448. Below the
// smallest normal E4M3 number such a rounding is coarse, and every small scale is tried instead; the smallest
// of the best ones is taken. Quantising the result again then gives the same bytes.
#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <type_traits>
#include <vector>

#include "ops/nvfp4_codes.h"
#include "ops/ops.h"

namespace magi {
namespace {

constexpr int kTile = 16;  ///< columns quantised together, one a lane
static_assert(kTile == kLanes && kTile == kNvfp4Block);

constexpr float kLargest = 0x1p120f;  ///< beyond it a scale would leave the range of bf16
constexpr int kSmallestExponent =
    -123;  ///< 2^-123 · 2^-10 (the smallest E2M1·E4M3) is bf16's smallest number
constexpr std::uint32_t kE4m3Bias = (127 - 7) << 3;  ///< between the exponents of f32 and of E4M3
constexpr float kLargestRounding448 = 464;           ///< the tie between 448 and 480 goes to 448

/// The scale among E4M3's eight smallest (and the first after them) that loses least.
std::uint8_t search_small_scale(const float* block) {
  std::uint8_t best = 0;
  double least = std::numeric_limits<double>::infinity();
  for (std::uint8_t code = 0; code <= 8; ++code) {
    const float scale = e4m3_value(code);
    double error = 0;
    for (int k = 0; k < kTile; ++k) {
      const float a = std::abs(block[k * kTile]);
      const float q = scale > 0 ? e2m1_value(static_cast<unsigned>(magnitude_code(a, scale))) * scale : 0;
      error += (static_cast<double>(a) - q) * (static_cast<double>(a) - q);
    }
    if (error < least) {
      least = error;
      best = code;
    }
  }
  return best;
}

struct TileCodes {
  alignas(64) std::uint32_t words[2][kTile];  ///< of each column: nibbles 0–7, 8–15
  alignas(64) std::uint32_t scales[kTile];
  float squared_error, squared_norm;
};

/// x [16 depths][16 columns], already divided by the matrix' scale.
MAGI2_SIMD void quantize_tile(const float* x, TileCodes& codes) {
  Floats largest{};
  for (int k = 0; k < kTile; ++k) {
    const Floats v = load(x + k * kTile), a = v < 0.0f ? -v : v;
    largest = a > largest ? a : largest;
  }
  // e4m3_code and e4m3_value of 16 numbers; those below the normal ones are searched for.
  const Floats sixth = largest / 6.0f;
  const UInts bits = std::bit_cast<UInts>(sixth);
  UInts rounded = (bits + 0x7ffffu + (bits >> 20 & 1u)) >> 20;
  rounded = rounded > kE4m3Bias + 0x7eu ? UInts{} + (kE4m3Bias + 0x7eu) : rounded;
  const UInts normal = std::bit_cast<UInts>(sixth >= kE4m3SmallestNormal);
  const UInts small = std::bit_cast<UInts>(sixth > 0.0f) & ~normal;
  const UInts scale_codes = (rounded - kE4m3Bias) & normal;
  std::memcpy(codes.scales, &scale_codes, sizeof scale_codes);
  Floats scale = std::bit_cast<Floats>((rounded << 20) & normal);
  for (int n = 0; n < kTile; ++n) {
    if (small[n] == 0) continue;
    codes.scales[n] = search_small_scale(x + n);
    scale[n] = e4m3_value(static_cast<std::uint8_t>(codes.scales[n]));
  }
  const UInts some = std::bit_cast<UInts>(scale > 0.0f);
  UInts words[2] = {};
  Floats error{}, norm{};
  for (int k = 0; k < kTile; ++k) {
    const Floats v = load(x + k * kTile), a = v < 0.0f ? -v : v;
    const UInts code = std::bit_cast<UInts>(-magnitude_code(a, scale)) & some;
    const UInts sign = std::bit_cast<UInts>((v < 0.0f) & (std::bit_cast<Ints>(code) > 0)) & 8u;
    words[kNibblePlace.word[static_cast<std::size_t>(k)]] |=
        (code | sign) << kNibblePlace.shift[static_cast<std::size_t>(k)];
    const Floats lost =
        a - __builtin_convertvector(std::bit_cast<Ints>(doubled_magnitude(code)), Floats) * (0.5f * scale);
    error += lost * lost;
    norm += a * a;
  }
  std::memcpy(codes.words, words, sizeof words);
  codes.squared_error = sum(error);
  codes.squared_norm = sum(norm);
}

/// 16 rows of 16 values that lie `step` apart, times `factor`.
template <typename T>
MAGI2_INLINE void load_rows(const T* from, std::int64_t step, float factor, float* x) {
  for (std::int64_t r = 0; r < kTile; ++r) store(x + r * kTile, load(from + r * step) * factor);
}
MAGI2_SIMD void load_rows_f32(const float* from, std::int64_t step, float factor, float* x) {
  load_rows(from, step, factor, x);
}
MAGI2_SIMD void load_rows_bf16(const bf16* from, std::int64_t step, float factor, float* x) {
  load_rows(from, step, factor, x);
}

/// A matrix to be quantised: element (k, n) at k·depth_step + n·column_step, one of which is 1.
template <typename T>
struct Source {
  const T* data;
  std::int64_t depth, columns, depth_step, column_step;

  /// Depths from k, columns from n, times `factor`; zeros outside.
  void tile(std::int64_t k0, std::int64_t n0, float factor, float* x) const {
    const std::int64_t ks = std::min<std::int64_t>(kTile, depth - k0),
                       ns = std::min<std::int64_t>(kTile, columns - n0);
    const T* from = data + k0 * depth_step + n0 * column_step;
    if (ks == kTile && ns == kTile && column_step == 1) {
      whole(from, depth_step, factor, x);
    } else if (ks == kTile && ns == kTile) {
      alignas(64) float turned[kTile * kTile];
      whole(from, column_step, factor, turned);
      for (int n = 0; n < kTile; ++n)
        for (int k = 0; k < kTile; ++k) x[k * kTile + n] = turned[n * kTile + k];
    } else {
      std::fill_n(x, kTile * kTile, 0.0f);
      for (std::int64_t k = 0; k < ks; ++k)
        for (std::int64_t n = 0; n < ns; ++n)
          x[k * kTile + n] = static_cast<float>(from[k * depth_step + n * column_step]) * factor;
    }
  }

 private:
  static void whole(const T* from, std::int64_t step, float factor, float* x) {
    if constexpr (std::is_same_v<T, bf16>)
      load_rows_bf16(from, step, factor, x);
    else
      load_rows_f32(from, step, factor, x);
  }
};

template <typename T>
MAGI2_INLINE std::uint32_t largest_bits(const T* values, std::int64_t count) {
  UInts largest{};
  for_lanes(count, [&](std::int64_t i, auto n) MAGI2_INLINE_LAMBDA {
    const UInts bits = std::bit_cast<UInts>(load(values + i, n)) & 0x7fffffffu;
    largest = bits > largest ? bits : largest;
  });
  std::uint32_t all = 0;
  for (int n = 0; n < kTile; ++n) all = std::max<std::uint32_t>(all, largest[n]);
  return all;
}
MAGI2_SIMD std::uint32_t largest_bits_f32(const float* values, std::int64_t count) {
  return largest_bits(values, count);
}
MAGI2_SIMD std::uint32_t largest_bits_bf16(const bf16* values, std::int64_t count) {
  return largest_bits(values, count);
}

/// Largest magnitude of contiguous values; NaN and infinities count as infinite.
template <typename T>
float largest_magnitude(const T* values, std::int64_t count) {
  std::uint32_t bits;
  if constexpr (std::is_same_v<T, bf16>)
    bits = largest_bits_bf16(values, count);
  else
    bits = largest_bits_f32(values, count);
  return bits >= 0x7f800000u ? std::numeric_limits<float>::infinity() : std::bit_cast<float>(bits);
}

int matrix_exponent(float largest) {
  if (largest == 0) return 0;
  int exponent = std::max(kSmallestExponent, std::ilogb(largest) - 12);
  while (std::ldexp(largest, -exponent) / 6.0f > kLargestRounding448) ++exponent;
  return exponent;
}

/// Quantises columns n0 … n0+15; `put(column, block, values, scale)`.
template <typename T, typename Put>
QuantError quantize_columns(const Source<T>& source, int exponent, std::int64_t n0, const Put& put) {
  alignas(64) float x[kTile * kTile];
  TileCodes codes;
  const float factor = std::ldexp(1.0f, -exponent);
  const std::int64_t count = std::min<std::int64_t>(kTile, source.columns - n0);
  QuantError total;
  for (std::int64_t k = 0; k < source.depth; k += kTile) {
    source.tile(k, n0, factor, x);
    quantize_tile(x, codes);
    total.add({codes.squared_error, codes.squared_norm});
    for (std::int64_t n = 0; n < count; ++n) {
      const std::uint32_t words[2] = {codes.words[0][n], codes.words[1][n]};
      put(n0 + n, k / kTile, words, static_cast<std::uint8_t>(codes.scales[n]));
    }
  }
  return {std::ldexp(total.squared_error, 2 * exponent), std::ldexp(total.squared_norm, 2 * exponent)};
}

/// Puts a block (nibbles as nvfp4_nibble says) into the words of its row, which it shares with another one.
void place_block(const std::uint32_t* nibbles, std::int64_t block, std::byte* row) {
  for (std::int64_t q = 0; q < 4; ++q) {
    std::byte* at = row + Nvfp4Layout::word_of(block, 2 * q);
    std::uint32_t word;
    std::memcpy(&word, at, sizeof word);
    const std::uint32_t bytes = nibbles[q / 2] >> (q % 2 * 16), both = (bytes & 0xffu) | (bytes & 0xff00u)
                                                                                             << 8;
    for (int i = 0; i < 2; ++i) {
      const std::uint32_t codes = both >> (4 * i);
      word |= Nvfp4Layout::place((codes & 0x00080008u) << 12 | (codes & 0x00070007u) << 6,
                                 Nvfp4Layout::pair_of(block, 8 * i));
    }
    std::memcpy(at, &word, sizeof word);
  }
}

/// False for values that cannot be quantised. `expert` starts as zeros.
template <typename T>
bool quantize_expert_matrix(const T* weights, const Nvfp4Layout& layout, ExpertMatrix m, std::byte* expert,
                            QuantError& error) {
  const std::int64_t depth = layout.depth(m), columns = layout.columns(m);
  const Source<T> source{weights, depth, columns, columns, 1};
  const float largest = largest_magnitude(weights, depth * columns);
  if (largest > kLargest) return false;
  const int exponent = matrix_exponent(largest);
  const float scale = std::ldexp(1.0f, exponent);
  std::memcpy(expert + layout.matrix_scale_at(m), &scale, sizeof scale);
  for (std::int64_t n = 0; n < columns; n += kTile)
    error.add(quantize_columns(
        source, exponent, n,
        [&](std::int64_t column, std::int64_t block, const std::uint32_t* words, std::uint8_t block_scale) {
          place_block(words, block, expert + layout.row_at(m, column, block));
          expert[layout.scale_at(m, column, block)] =
              std::byte{Nvfp4Layout::scale_byte(e4m3_value(block_scale))};
        }));
  return true;
}

template <typename T>
QuantError quantize_experts_of(const Tensor& gate, const Tensor& up, const Tensor& down, std::byte* to) {
  const std::int64_t n = gate.dim(0);
  const Nvfp4Layout layout{n, gate.dim(1), gate.dim(2)};
  const std::int64_t size = layout.dim * layout.hidden;
  std::vector<QuantError> errors(static_cast<std::size_t>(n));
  std::vector<char> good(static_cast<std::size_t>(n));
#pragma omp parallel for schedule(dynamic)
  for (std::int64_t e = 0; e < n; ++e) {
    std::byte* expert = to + e * layout.expert_bytes();
    std::memset(expert, 0, static_cast<std::size_t>(layout.expert_bytes()));
    QuantError& error = errors[static_cast<std::size_t>(e)];
    const auto quantize = [&](const Tensor& weights, ExpertMatrix m) {
      return quantize_expert_matrix(weights.data<T>() + e * size, layout, m, expert, error);
    };
    good[static_cast<std::size_t>(e)] = quantize(gate, ExpertMatrix::gate) &&
                                        quantize(up, ExpertMatrix::up) && quantize(down, ExpertMatrix::down);
  }
  QuantError total;
  for (std::int64_t e = 0; e < n; ++e) {
    require(good[static_cast<std::size_t>(e)],
            "NVFP4: a weight of expert {} is not finite, or beyond 2^120: the checkpoint is damaged", e);
    total.add(errors[static_cast<std::size_t>(e)]);
  }
  return total;
}

template <typename T>
QuantError quantize_matrix_of(const Tensor& matrix, Nvfp4Matrix& to) {
  const std::int64_t columns = matrix.dim(0), depth = matrix.dim(1), blocks = depth / kNvfp4Block;
  const Source<T> source{matrix.data<T>(), depth, columns, 1, depth};
  const float largest = largest_magnitude(matrix.data<T>(), columns * depth);
  require(largest <= kLargest, "NVFP4: a weight is not finite, or beyond 2^120: the checkpoint is damaged");
  const int exponent = matrix_exponent(largest);
  to.matrix_scale.data<float>()[0] = std::ldexp(1.0f, exponent);
  std::uint8_t* packed = to.packed.data<std::uint8_t>();
  std::vector<QuantError> errors(static_cast<std::size_t>((columns + kTile - 1) / kTile));
#pragma omp parallel for schedule(static)
  for (std::int64_t n = 0; n < columns; n += kTile)
    errors[static_cast<std::size_t>(n / kTile)] = quantize_columns(
        source, exponent, n,
        [&](std::int64_t column, std::int64_t block, const std::uint32_t* words, std::uint8_t scale) {
          std::uint8_t* row = packed + column * blocks * 9;
          std::memcpy(row + block * 8, words, 8);
          row[blocks * 8 + block] = scale;
        });
  QuantError error;
  for (const QuantError& e : errors) error.add(e);
  return error;
}

}  // namespace

double QuantError::relative_rms() const {
  return squared_norm > 0 ? std::sqrt(squared_error / squared_norm) : 0;
}

QuantError quantize_experts(const Tensor& gate, const Tensor& up, const Tensor& down, std::byte* to) {
  require(gate.rank() == 3 && up.shape() == gate.shape() &&
              down.shape() == Shape({gate.dim(0), gate.dim(2), gate.dim(1)}),
          "NVFP4: W_gate {}, W_up {}, W_down {} do not belong together", to_string(gate.shape()),
          to_string(up.shape()), to_string(down.shape()));
  const bool alike = up.dtype() == gate.dtype() && down.dtype() == gate.dtype();
  if (alike && gate.dtype() == DType::bf16) return quantize_experts_of<bf16>(gate, up, down, to);
  return quantize_experts_of<float>(gate.to(DType::f32), up.to(DType::f32), down.to(DType::f32), to);
}

ExpertWeight nvfp4_experts(const Tensor& gate, const Tensor& up, const Tensor& down, std::int64_t heads,
                           DType dtype) {
  require(gate.rank() == 3 && heads > 0 && gate.numel() > 0 && gate.dim(0) % heads == 0,
          "NVFP4: W_gate {} for {} heads, expected [heads·experts, dim, hidden]", to_string(gate.shape()),
          heads);
  ExpertWeight w;
  w.heads = heads;
  w.experts = gate.dim(0) / heads;
  w.dim = gate.dim(1);
  w.hidden = gate.dim(2);
  w.dtype = dtype;
  const Nvfp4Layout layout = nvfp4_layout(w);
  w.nvfp4 = Tensor::empty(DType::u8, {heads, layout.head_bytes()});
  quantize_experts(gate, up, down, static_cast<std::byte*>(w.nvfp4.raw()));
  return w;
}

Nvfp4Matrix quantize_matrix(const Tensor& matrix, QuantError* error) {
  require(matrix.rank() == 2 && matrix.dim(1) % kNvfp4Block == 0,
          "NVFP4: {} is no matrix of a depth that is a multiple of 16", to_string(matrix.shape()));
  Nvfp4Matrix result{Tensor::empty(DType::u8, {matrix.dim(0), matrix.dim(1) / kNvfp4Block * 9}),
                     Tensor::empty(DType::f32, {1})};
  const QuantError e = matrix.dtype() == DType::bf16
                           ? quantize_matrix_of<bf16>(matrix, result)
                           : quantize_matrix_of<float>(matrix.to(DType::f32), result);
  if (error) error->add(e);
  return result;
}

}  // namespace magi
