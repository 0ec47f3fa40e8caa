// SPDX-License-Identifier: Apache-2.0
#include "bench/random_store.h"

#include <array>
#include <cmath>
#include <cstring>
#include <string_view>
#include <vector>

namespace magi {
namespace {

constexpr int kBits = 12;  // of randomness a value: fine enough for weights, and the table stays in the cache
constexpr std::int64_t kQuantiles = 1 << kBits;
constexpr std::int64_t kChunk = 1 << 16;  // values a task

struct Distribution {
  double mean, deviation;
};

/// By the part that a tensor plays, which its name tells.
Distribution distribution_of(std::string_view name, const Shape& shape) {
  const auto has = [&](std::string_view part) { return name.find(part) != name.npos; };
  if (has("mhc_phi")) return {0, 1};
  if (has("mhc_alpha")) return {0.01, 0};
  if (has("mhc_bias")) return {0, 0.5};
  if (name.ends_with("A_log")) return {1, 0.5};
  if (name.ends_with("linear_attn.norm.weight")) return {1, 0.05};
  if (name.ends_with("weight_g")) return {0.7, 0.05};
  if (shape.size() == 1) return {0, 0.05};
  const bool input_major = has("moe_mlp.W_");  // [experts, in, out]
  const std::int64_t fan_in = input_major ? shape[1] : numel(shape) / shape[0];
  return {0, 1 / std::sqrt(static_cast<double>(fan_in))};
}

/// Values that cut the standard normal distribution into kQuantiles equal parts, at each part's middle.
std::array<double, kQuantiles> make_normal_quantiles() {
  std::array<double, kQuantiles> table{};
  for (std::int64_t i = 0; i < kQuantiles; ++i) {
    const double p = (static_cast<double>(i) + 0.5) / static_cast<double>(kQuantiles);
    double low = -6, high = 6;
    for (int k = 0; k < 50; ++k) {
      const double middle = (low + high) / 2;
      (0.5 * std::erfc(-middle / std::sqrt(2.0)) < p ? low : high) = middle;
    }
    table[static_cast<std::size_t>(i)] = low;
  }
  return table;
}

const std::array<double, kQuantiles>& normal_quantiles() {
  static const std::array<double, kQuantiles> quantiles = make_normal_quantiles();
  return quantiles;
}

/// SplitMix64's output for state x.
std::uint64_t mix(std::uint64_t x) {
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
  return x ^ (x >> 31);
}

std::uint64_t seed_of(std::string_view name) {
  std::uint64_t hash = 14695981039346656037u;
  for (const char c : name) hash = (hash ^ static_cast<unsigned char>(c)) * 1099511628211u;
  return hash;
}

template <typename T>
void fill(Tensor& tensor, std::uint64_t seed, const Distribution& d) {
  const std::array<double, kQuantiles>& quantiles = normal_quantiles();
  std::array<T, kQuantiles> table;
  for (std::size_t i = 0; i < table.size(); ++i)
    table[i] = static_cast<T>(static_cast<float>(d.mean + d.deviation * quantiles[i]));
  T* out = tensor.data<T>();
  const std::int64_t count = tensor.numel();
#pragma omp parallel for schedule(static)
  for (std::int64_t first = 0; first < count; first += kChunk) {
    for (std::int64_t i = first; i < std::min(first + kChunk, count); i += 4) {
      std::uint64_t bits = mix(seed + static_cast<std::uint64_t>(i) * 0x9e3779b97f4a7c15u);
      for (std::int64_t k = i; k < std::min(i + 4, count); ++k, bits >>= 16)
        out[k] = table[static_cast<std::size_t>(bits & (kQuantiles - 1))];
    }
  }
}

/// Nvfp4Layout's pairs of values as in quantised Gaussian weights, by 16 random bits: there the largest of 16
/// values becomes 6, so that their deviation is about 3.4.
const std::vector<std::uint32_t>& value_pairs() {
  static const std::vector<std::uint32_t> table = [] {
    std::array<std::uint32_t, 256> values{};
    for (std::size_t i = 0; i < values.size(); ++i) {
      const unsigned code = e2m1_code(static_cast<float>(3.4 * normal_quantiles()[i * 16 + 8]));
      values[i] = (code & 8u) << 12 | (code & 7u) << 6;
    }
    std::vector<std::uint32_t> pairs(1 << 16);
    for (std::size_t i = 0; i < pairs.size(); ++i) pairs[i] = values[i >> 8] | values[i & 255] << 16;
    return pairs;
  }();
  return table;
}

/// Block scales of 128 … 240, as the quantiser's are, and matrix scales that make the weights' deviation
/// 1/√depth.
void draw_expert(const Nvfp4Layout& layout, std::uint64_t seed, std::uint8_t* to) {
  const std::vector<std::uint32_t>& pairs = value_pairs();
  const std::int64_t end = layout.matrix_scale_at(ExpertMatrix::gate);
  std::uint64_t state = seed;
  for (std::int64_t tile = 0; tile < end; tile += Nvfp4Layout::kTileBytes) {
    std::uint8_t* out = to + tile;
    for (std::int64_t i = 0; i < Nvfp4Layout::kTileValueBytes; i += 4) {
      const std::uint64_t bits = mix(state += 0x9e3779b97f4a7c15u);
      std::uint32_t word = 0;
      for (int p = 0; p < 4; ++p) word |= Nvfp4Layout::place(pairs[bits >> (16 * p) & 0xffff], p);
      std::memcpy(out + i, &word, sizeof word);
    }
    for (std::int64_t i = Nvfp4Layout::kTileValueBytes; i < Nvfp4Layout::kTileBytes; i += 8) {
      const std::uint64_t bits =
          (mix(state += 0x9e3779b97f4a7c15u) & 0x0707070707070707u) | 0x8080808080808080u;
      std::memcpy(out + i, &bits, sizeof bits);
    }
  }
  std::memset(to + end, 0, static_cast<std::size_t>(layout.expert_bytes() - end));
  for (const ExpertMatrix m : {ExpertMatrix::gate, ExpertMatrix::up, ExpertMatrix::down}) {
    const double deviation = 1 / std::sqrt(static_cast<double>(layout.depth(m)));
    const float scale = std::ldexp(1.0f, static_cast<int>(std::lround(std::log2(deviation / (184 * 3.1)))));
    std::memcpy(to + layout.matrix_scale_at(m), &scale, sizeof scale);
  }
}

}  // namespace

Tensor RandomStore::get(const std::string& name, const Shape& expected) const {
  const Distribution distribution = distribution_of(name, expected);
  Tensor tensor = Tensor::empty(expected.size() > 1 ? DType::bf16 : DType::f32, expected);
  if (tensor.dtype() == DType::bf16)
    fill<bf16>(tensor, seed_of(name), distribution);
  else
    fill<float>(tensor, seed_of(name), distribution);
  return tensor;
}

void RandomStore::add_nvfp4(const std::string& name, std::int64_t heads, const Nvfp4Layout& layout) {
  nvfp4_[name] = layout;
  entries_[name] = {
      .dtype = DType::u8, .shape = {heads, layout.head_bytes()}, .file = where(), .stored_as = "U8"};
}

Tensor RandomStore::read(const std::string& name, const TensorInfo& info) const {
  const Nvfp4Layout& layout = nvfp4_.at(name);
  Tensor tensor = Tensor::empty(DType::u8, info.shape);
  std::uint8_t* out = tensor.data<std::uint8_t>();
  const std::int64_t experts = info.shape[0] * layout.experts, bytes = layout.expert_bytes();
#pragma omp parallel for schedule(static)
  for (std::int64_t e = 0; e < experts; ++e)
    draw_expert(layout, mix(seed_of(name) + static_cast<std::uint64_t>(e)), out + e * bytes);
  return tensor;
}

}  // namespace magi
