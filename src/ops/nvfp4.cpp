// SPDX-License-Identifier: Apache-2.0
// Choice of scales: a block's is the E4M3 number nearest to a sixth of its largest magnitude, so that this
// one becomes 6; the matrix' is the smallest power of two for which none of them exceeds 448. Below the
// smallest normal E4M3 number such a rounding is coarse, and every small scale is tried instead; the smallest
// of the best ones is taken. Quantising the result again then gives the same bytes.
#include "ops/nvfp4.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

#include "ops/cpu/vector_math.h"
#include "ops/ops.h"

namespace magi {
namespace {

constexpr int kTile = 16;  ///< columns quantised together, one a lane
static_assert(kTile == kLanes && kTile == kNvfp4Block);

constexpr float kLargest = 0x1p120f;  ///< beyond it a scale would leave the range of bf16
constexpr int kSmallestExponent =
    -123;  ///< 2^-123 · 2^-10 (the smallest E2M1·E4M3) is bf16's smallest number
constexpr float kSmallestNormal = 0x1p-6f;  ///< of E4M3
constexpr float kLargestRounding448 = 464;  ///< the tie between 448 and 480 goes to 448

/// Halfway between neighbours of 0, ½, 1, 1½, 2, 3, 4, 6.
constexpr std::array<float, 7> kHalfway{0.25f, 0.75f, 1.25f, 1.75f, 2.5f, 3.5f, 5};

struct NibblePlace {
  std::array<int, 16> word{}, shift{};
};
constexpr NibblePlace place_nibbles() {
  NibblePlace place;
  for (int k = 0; k < 16; ++k) {
    place.word[static_cast<std::size_t>(k)] = Nvfp4Layout::nibble_of(k) / 8;
    place.shift[static_cast<std::size_t>(k)] = Nvfp4Layout::nibble_of(k) % 8 * 4;
  }
  return place;
}
constexpr NibblePlace kPlace = place_nibbles();

// ---------------------------------------------------------------- quantising

/// Codes of |values|, ties to even: one more for each halfway point that is passed.
template <typename F>
MAGI2_INLINE auto magnitude_code(F a, F scale) {
  auto code = (a > kHalfway[0] * scale) + (a >= kHalfway[1] * scale);
  code += (a > kHalfway[2] * scale) + (a >= kHalfway[3] * scale);
  code += (a > kHalfway[4] * scale) + (a >= kHalfway[5] * scale);
  return code + (a > kHalfway[6] * scale);  // vectors: minus the code
}

/// 2·E2M1 of codes 0…7, for integers and vectors of them.
MAGI2_INLINE UInts doubled_magnitude(UInts code) {
  const UInts exponent = code >> 1, mantissa = code & 1u;
  return exponent == 0u ? mantissa : (mantissa | 2u) << (exponent - 1u);
}

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
  std::uint8_t scales[kTile];
};

/// x [16 depths][16 columns], already divided by the matrix' scale.
MAGI2_SIMD void quantize_tile(const float* x, TileCodes& codes, float* squared_error) {
  Floats largest{};
  for (int k = 0; k < kTile; ++k) {
    const Floats v = load(x + k * kTile), a = v < 0.0f ? -v : v;
    largest = a > largest ? a : largest;
  }
  alignas(64) float scales[kTile], sixths[kTile];
  store(sixths, largest / 6.0f);
  for (int n = 0; n < kTile; ++n) {
    codes.scales[n] =
        sixths[n] >= kSmallestNormal || sixths[n] == 0 ? e4m3_code(sixths[n]) : search_small_scale(x + n);
    scales[n] = e4m3_value(codes.scales[n]);
  }
  const Floats scale = load(scales);
  const UInts some = std::bit_cast<UInts>(scale > 0.0f);
  UInts words[2] = {};
  Floats error{};
  for (int k = 0; k < kTile; ++k) {
    const Floats v = load(x + k * kTile), a = v < 0.0f ? -v : v;
    const UInts code = std::bit_cast<UInts>(-magnitude_code(a, scale)) & some;
    const UInts sign = std::bit_cast<UInts>((v < 0.0f) & (std::bit_cast<Ints>(code) > 0)) & 8u;
    words[kPlace.word[static_cast<std::size_t>(k)]] |= (code | sign)
                                                       << kPlace.shift[static_cast<std::size_t>(k)];
    const Floats lost =
        a - __builtin_convertvector(std::bit_cast<Ints>(doubled_magnitude(code)), Floats) * (0.5f * scale);
    error += lost * lost;
  }
  std::memcpy(codes.words[0], &words[0], sizeof words[0]);
  std::memcpy(codes.words[1], &words[1], sizeof words[1]);
  *squared_error = sum(error);
}

/// A matrix to be quantised: element (k, n) at k·depth_step + n·column_step.
template <typename T>
struct Source {
  const T* data;
  std::int64_t depth, columns, depth_step, column_step;

  /// Depths from k, columns from n, times `factor`; zeros outside.
  void tile(std::int64_t k0, std::int64_t n0, float factor, float* x) const {
    const std::int64_t ks = std::min<std::int64_t>(kTile, depth - k0),
                       ns = std::min<std::int64_t>(kTile, columns - n0);
    if (ks < kTile || ns < kTile) std::fill_n(x, kTile * kTile, 0.0f);
    const T* from = data + k0 * depth_step + n0 * column_step;
    for (std::int64_t k = 0; k < ks; ++k)
      for (std::int64_t n = 0; n < ns; ++n)
        x[k * kTile + n] = static_cast<float>(from[k * depth_step + n * column_step]) * factor;
  }
};

/// Largest magnitude of contiguous values; NaN and infinities count as infinite.
template <typename T>
float largest_magnitude(const T* values, std::int64_t count) {
  std::uint32_t largest = 0;
  for (std::int64_t i = 0; i < count; ++i)
    largest = std::max(largest, std::bit_cast<std::uint32_t>(static_cast<float>(values[i])) & 0x7fffffffu);
  return largest >= 0x7f800000u ? std::numeric_limits<float>::infinity() : std::bit_cast<float>(largest);
}

int matrix_exponent(float largest) {
  if (largest == 0) return 0;
  int exponent = std::max(kSmallestExponent, std::ilogb(largest) - 12);
  while (std::ldexp(largest, -exponent) / 6.0f > kLargestRounding448) ++exponent;
  return exponent;
}

/// Quantises columns n0 … n0+15; `put(column, block, values, scale)`.
template <typename T, typename Put>
double quantize_columns(const Source<T>& source, int exponent, std::int64_t n0, const Put& put) {
  alignas(64) float x[kTile * kTile];
  TileCodes codes;
  const float factor = std::ldexp(1.0f, -exponent);
  const std::int64_t count = std::min<std::int64_t>(kTile, source.columns - n0);
  double total = 0;
  for (std::int64_t k = 0; k < source.depth; k += kTile) {
    float error;
    source.tile(k, n0, factor, x);
    quantize_tile(x, codes, &error);
    total += error;
    for (std::int64_t n = 0; n < count; ++n) {
      const std::uint32_t words[2] = {codes.words[0][n], codes.words[1][n]};
      put(n0 + n, k / kTile, words, codes.scales[n]);
    }
  }
  return std::ldexp(total, 2 * exponent);
}

template <typename T>
double squared_norm(const T* values, std::int64_t count) {
  constexpr std::int64_t kRun = 64;  // short sums in f32, joined in f64
  double total = 0;
  for (std::int64_t i = 0; i < count; i += kRun) {
    double run = 0;
    for (std::int64_t j = i; j < std::min(i + kRun, count); ++j) {
      const auto v = static_cast<double>(static_cast<float>(values[j]));
      run += v * v;
    }
    total += run;
  }
  return total;
}

/// False for values that cannot be quantised.
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
  error.squared_norm += squared_norm(weights, depth * columns);
  for (std::int64_t n = 0; n < columns; n += kTile)
    error.squared_error += quantize_columns(
        source, exponent, n,
        [&](std::int64_t column, std::int64_t block, const std::uint32_t* words, std::uint8_t block_scale) {
          const auto* values = reinterpret_cast<const std::byte*>(words);
          std::byte* row = expert + layout.row_at(m, column, block);
          for (std::int64_t i = 0; i < 8; ++i) row[Nvfp4Layout::byte_of(block, i)] = values[i];
          expert[layout.scale_at(m, column, block)] = std::byte{block_scale};
        });
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

// ---------------------------------------------------------------- dequantising

/// 16 values of a block, `half_scale` = half of both scales.
template <typename T>
MAGI2_INLINE void decode_block(const std::byte* values, float half_scale, T* to) {
  std::uint32_t words[2];
  std::memcpy(words, values, sizeof words);
  UInts word, shift;
  for (std::size_t k = 0; k < 16; ++k) {
    word[k] = words[kPlace.word[k]];
    shift[k] = static_cast<std::uint32_t>(kPlace.shift[k]);
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

/// Rows of expert tiles (Nvfp4Layout::byte_of) → their blocks one after the other, in place.
MAGI2_SIMD void order_blocks(std::byte* values, std::int64_t rows) {
  using Row = std::uint8_t __attribute__((vector_size(Nvfp4Layout::kRowBytes)));
  for (std::int64_t r = 0; r < rows; ++r) {
    Row row;
    std::memcpy(&row, values + r * Nvfp4Layout::kRowBytes, sizeof row);
    row = __builtin_shufflevector(row, row, 0, 2, 8, 10, 16, 18, 24, 26, 1, 3, 9, 11, 17, 19, 25, 27, 4, 6,
                                  12, 14, 20, 22, 28, 30, 5, 7, 13, 15, 21, 23, 29, 31);
    std::memcpy(values + r * Nvfp4Layout::kRowBytes, &row, sizeof row);
  }
}

/// One column. `load(block, count, values)` gives the values of `count` blocks one after the other (there is
/// room for a multiple of four); scale_at(block) is where a scale lies. Blocks are gathered in runs, so that
/// the vectorised part is called for many of them.
template <typename T, typename Load, typename ScaleAt>
void decode_column(std::int64_t depth, float matrix_scale, const Load& load, const ScaleAt& scale_at, T* to,
                   std::int64_t pitch) {
  constexpr std::int64_t kRun = 32;
  const std::array<float, 256>& e4m3 = e4m3_values();
  std::byte values[kRun * 8];
  float half_scales[kRun];
  T decoded[kRun * kNvfp4Block];
  for (std::int64_t k = 0; k < depth; k += kRun * kNvfp4Block) {
    const std::int64_t left = std::min(depth - k, kRun * kNvfp4Block),
                       blocks = (left + kNvfp4Block - 1) / kNvfp4Block;
    load(k / kNvfp4Block, blocks, values);
    for (std::int64_t b = 0; b < blocks; ++b)
      half_scales[b] = 0.5f * e4m3[static_cast<std::size_t>(*scale_at(k / kNvfp4Block + b))] * matrix_scale;
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
        layout.depth(m), scale, load, [&](std::int64_t b) { return expert + layout.scale_at(m, n, b); },
        to + (n - first) * pitch, pitch);
  }
}

void require_matrix_shapes(const Nvfp4Matrix& m, std::int64_t depth) {
  const std::int64_t blocks = (depth + kNvfp4Block - 1) / kNvfp4Block;
  require(m.values.rank() == 2 && m.values.dim(1) == blocks * 8 &&
              m.scales.shape() == Shape({m.values.dim(0), blocks}) && m.matrix_scale.numel() == 1,
          "NVFP4 matrix of depth {}: values {}, scales {}", depth, to_string(m.values.shape()),
          to_string(m.scales.shape()));
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
  if (a < kSmallestNormal) return static_cast<std::uint8_t>(sign | std::lrint(a * 0x1p9f));
  const auto bits = std::bit_cast<std::uint32_t>(a);
  const std::uint32_t rounded =
      (bits + 0x7ffffu + (bits >> 20 & 1u)) >> 20;  // sign, exponent, 3 bits of mantissa
  return static_cast<std::uint8_t>(sign | std::min(rounded - ((127u - 7u) << 3), 0x7eu));
}

double QuantError::relative_rms() const {
  return squared_norm > 0 ? std::sqrt(squared_error / squared_norm) : 0;
}

// ---------------------------------------------------------------- experts

Nvfp4Layout nvfp4_layout(const ExpertWeight& w) {
  return {w.experts, w.dim, w.hidden};
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

PlainExperts dequantize_experts(const std::byte* from, std::int64_t n, const Nvfp4Layout& layout) {
  PlainExperts plain{Tensor::empty(DType::bf16, {n, layout.dim, layout.hidden}),
                     Tensor::empty(DType::bf16, {n, layout.dim, layout.hidden}),
                     Tensor::empty(DType::bf16, {n, layout.hidden, layout.dim})};
  const std::int64_t size = layout.dim * layout.hidden;
  bf16* const to[] = {plain.gate.data<bf16>(), plain.up.data<bf16>(), plain.down.data<bf16>()};
#pragma omp parallel for schedule(dynamic)
  for (std::int64_t e = 0; e < n; ++e) {
    std::vector<bf16> columns(static_cast<std::size_t>(kTile * std::max(layout.dim, layout.hidden)));
    for (const ExpertMatrix m : {ExpertMatrix::gate, ExpertMatrix::up, ExpertMatrix::down}) {
      const std::int64_t depth = layout.depth(m), width = layout.columns(m);
      bf16* matrix = to[static_cast<std::size_t>(m)] + e * size;
      for (std::int64_t n0 = 0; n0 < width; n0 += kTile) {
        const std::int64_t count = std::min<std::int64_t>(kTile, width - n0);
        dequantize_columns(from + e * layout.expert_bytes(), layout, m, n0, count, columns.data(), depth);
        for (std::int64_t k = 0; k < depth; ++k)
          for (std::int64_t i = 0; i < count; ++i)
            matrix[k * width + n0 + i] = columns[static_cast<std::size_t>(i * depth + k)];
      }
    }
  }
  return plain;
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

void dequantize_columns(const std::byte* expert, const Nvfp4Layout& layout, ExpertMatrix m,
                        std::int64_t first, std::int64_t count, float* to, std::int64_t pitch) {
  dequantize_expert_columns(expert, layout, m, first, count, to, pitch);
}
void dequantize_columns(const std::byte* expert, const Nvfp4Layout& layout, ExpertMatrix m,
                        std::int64_t first, std::int64_t count, bf16* to, std::int64_t pitch) {
  dequantize_expert_columns(expert, layout, m, first, count, to, pitch);
}

// ---------------------------------------------------------------- single matrices

namespace {

template <typename T>
QuantError quantize_matrix_of(const Tensor& matrix, Nvfp4Matrix& to) {
  const std::int64_t columns = matrix.dim(0), depth = matrix.dim(1), blocks = to.scales.dim(1);
  const Source<T> source{matrix.data<T>(), depth, columns, 1, depth};
  const float largest = largest_magnitude(matrix.data<T>(), columns * depth);
  require(largest <= kLargest, "NVFP4: a weight is not finite, or beyond 2^120: the checkpoint is damaged");
  const int exponent = matrix_exponent(largest);
  to.matrix_scale.data<float>()[0] = std::ldexp(1.0f, exponent);
  std::uint8_t* values = to.values.data<std::uint8_t>();
  std::uint8_t* scales = to.scales.data<std::uint8_t>();
  std::vector<double> errors(static_cast<std::size_t>((columns + kTile - 1) / kTile));
#pragma omp parallel for schedule(static)
  for (std::int64_t n = 0; n < columns; n += kTile)
    errors[static_cast<std::size_t>(n / kTile)] = quantize_columns(
        source, exponent, n,
        [&](std::int64_t column, std::int64_t block, const std::uint32_t* words, std::uint8_t scale) {
          std::memcpy(values + (column * blocks + block) * 8, words, 8);
          scales[column * blocks + block] = scale;
        });
  QuantError error{0, squared_norm(matrix.data<T>(), columns * depth)};
  for (const double e : errors) error.squared_error += e;
  return error;
}

}  // namespace

Nvfp4Matrix quantize_matrix(const Tensor& matrix, QuantError* error) {
  require(matrix.rank() == 2, "NVFP4: {} is no matrix", to_string(matrix.shape()));
  const std::int64_t blocks = (matrix.dim(1) + kNvfp4Block - 1) / kNvfp4Block;
  Nvfp4Matrix result{Tensor::empty(DType::u8, {matrix.dim(0), blocks * 8}),
                     Tensor::empty(DType::u8, {matrix.dim(0), blocks}), Tensor::empty(DType::f32, {1})};
  const QuantError e = matrix.dtype() == DType::bf16
                           ? quantize_matrix_of<bf16>(matrix, result)
                           : quantize_matrix_of<float>(matrix.to(DType::f32), result);
  if (error) error->add(e);
  return result;
}

Tensor dequantize_matrix(const Nvfp4Matrix& m, std::int64_t depth) {
  require_matrix_shapes(m, depth);
  const std::int64_t columns = m.values.dim(0), blocks = m.scales.dim(1);
  Tensor result = Tensor::empty(DType::bf16, {columns, depth});
  const auto* values = static_cast<const std::byte*>(m.values.raw());
  const auto* scales = static_cast<const std::byte*>(m.scales.raw());
  const float scale = m.matrix_scale.data<float>()[0];
  bf16* to = result.data<bf16>();
#pragma omp parallel for schedule(static)
  for (std::int64_t n = 0; n < columns; ++n)
    decode_column(
        depth, scale,
        [&](std::int64_t block, std::int64_t count, std::byte* run) {
          std::memcpy(run, values + (n * blocks + block) * 8, static_cast<std::size_t>(count) * 8);
        },
        [&](std::int64_t b) { return scales + n * blocks + b; }, to + n * depth, depth);
  return result;
}

}  // namespace magi
