// SPDX-License-Identifier: Apache-2.0
// Vectors of 16 floats, and functions of them that give the same bits on every instruction set: SSE2 makes
// four registers of a vector, AVX2 two, AVX-512 one. Sums over a row keep 16 partial sums and join them in
// one order.
#pragma once

#include <bit>
#include <cstdint>
#include <cstring>

#include "core/dtype.h"

// MAGI2_SIMD before a function: compile it for several instruction sets and choose at load time. Put it on
// the innermost function of hot loops (not around an OpenMP region, whose body becomes another function).
// Helpers called from there must be inline. Left out where the compiler or a sanitizer (which runs after
// ifunc resolvers) cannot do it; clang refuses it on templates.
#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__) && !defined(__SANITIZE_ADDRESS__) && \
    !defined(__SANITIZE_THREAD__)
#define MAGI2_SIMD __attribute__((target_clones("arch=x86-64-v4", "arch=x86-64-v3", "default")))
#else
#define MAGI2_SIMD
#endif

#define MAGI2_INLINE __attribute__((always_inline)) inline
#define MAGI2_INLINE_LAMBDA __attribute__((always_inline))

namespace magi {

inline constexpr std::int64_t kLanes = 16;
using Floats = float __attribute__((vector_size(64)));
using UInts = std::uint32_t __attribute__((vector_size(64)));
using Ints = std::int32_t __attribute__((vector_size(64)));
using UShorts = std::uint16_t __attribute__((vector_size(32)));

// ---------------------------------------------------------------- loads and stores, f32 or bf16, any
// alignment

MAGI2_INLINE Floats broadcast(float value) {
  return Floats{} + value;
}

MAGI2_INLINE Floats load(const float* p) {
  Floats v;
  std::memcpy(&v, p, sizeof v);
  return v;
}
MAGI2_INLINE Floats load(const bf16* p) {
  UShorts v;
  std::memcpy(&v, p, sizeof v);
  return std::bit_cast<Floats>(__builtin_convertvector(v, UInts) << 16);
}
/// The first `count` lanes; the others are zero.
template <typename T>
MAGI2_INLINE Floats load(const T* p, std::int64_t count) {
  T block[kLanes] = {};
  for (std::int64_t i = 0; i < count; ++i) block[i] = p[i];
  return load(block);
}

MAGI2_INLINE void store(float* p, Floats v) {
  std::memcpy(p, &v, sizeof v);
}
/// Rounds to nearest even and keeps NaN, as bf16(float) does.
MAGI2_INLINE void store(bf16* p, Floats v) {
  const UInts word = std::bit_cast<UInts>(v);
  const UInts rounded = (word + 0x7fffu + ((word >> 16) & 1u)) >> 16;
  const UInts nan = (word >> 16) | 0x40u;
  const UShorts bits = __builtin_convertvector((word & 0x7fffffffu) > 0x7f800000u ? nan : rounded, UShorts);
  std::memcpy(static_cast<void*>(p), &bits, sizeof bits);
}
template <typename T>
MAGI2_INLINE void store(T* p, Floats v, std::int64_t count) {
  T block[kLanes];
  store(block, v);
  for (std::int64_t i = 0; i < count; ++i) p[i] = block[i];
}

/// Stands for a count of kLanes that is known to the compiler.
struct AllLanes {};
template <typename T>
MAGI2_INLINE Floats load(const T* p, AllLanes) {
  return load(p);
}
template <typename T>
MAGI2_INLINE void store(T* p, Floats v, AllLanes) {
  store(p, v);
}

/// body(first, count) for 0…n−1 in blocks of 16; count is AllLanes, or the number left in the last block.
/// `body` must be declared MAGI2_INLINE_LAMBDA so that it is compiled with its caller's instruction set.
template <typename Body>
MAGI2_INLINE void for_lanes(std::int64_t n, const Body& body) {
  std::int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) body(i, AllLanes{});
  if (i < n) body(i, n - i);
}

/// Sum of the lanes: halves joined four times.
MAGI2_INLINE float sum(Floats v) {
  float a[kLanes];
  store(a, v);
  for (int width = 8; width > 0; width /= 2)
    for (int i = 0; i < width; ++i) a[i] += a[i + width];
  return a[0];
}

/// v rounded to T and back.
template <typename T>
MAGI2_INLINE float rounded(float v) {
  return static_cast<float>(static_cast<T>(v));
}

// ---------------------------------------------------------------- functions (F: float or Floats)

namespace detail {
template <typename F>
struct Lane;
template <>
struct Lane<float> {
  using Int = std::int32_t;
  using UInt = std::uint32_t;
};
template <>
struct Lane<Floats> {
  using Int = Ints;
  using UInt = UInts;
};

template <typename F>
MAGI2_INLINE F exp_of(F x) {
  using Int = typename Lane<F>::Int;
  using UInt = typename Lane<F>::UInt;
  // Cephes' expf: x = n·ln2 + r, a polynomial in r, then two halves of 2ⁿ so that subnormals and infinity
  // come out right. NaN passes the clamp and the polynomial; its n is garbage, hence unsigned arithmetic.
  const F low = F{} - 104.0f, high = F{} + 89.0f;
  x = x < low ? low : x;
  x = x > high ? high : x;
  const F shifted = x * 1.44269504088896341f + 12582912.0f;  // 1.5·2²³: the sum's low bits are n
  const F n = shifted - 12582912.0f;
  const F r = (x - n * 0.693359375f) - n * -2.12194440e-4f;
  F p = r * 1.9875691500e-4f + 1.3981999507e-3f;
  p = p * r + 8.3334519073e-3f;
  p = p * r + 4.1665795894e-2f;
  p = p * r + 1.6666665459e-1f;
  p = p * r + 5.0000001201e-1f;
  p = (p * (r * r) + r) + 1.0f;
  const Int exponent = std::bit_cast<Int>(std::bit_cast<UInt>(shifted) - 0x4b400000u);
  const Int first = exponent >> 1;
  const Int second = exponent - first;
  const F scale1 = std::bit_cast<F>((std::bit_cast<UInt>(first) + 127u) << 23);
  const F scale2 = std::bit_cast<F>((std::bit_cast<UInt>(second) + 127u) << 23);
  return p * scale1 * scale2;
}
}  // namespace detail

/// e^x within 2 ulp; 0 below −104, infinity above 88.73, NaN stays NaN. The float version gives the vector's
/// bits, and loops over it vectorise.
MAGI2_INLINE float fast_exp(float x) {
  return detail::exp_of(x);
}
MAGI2_INLINE Floats fast_exp(Floats x) {
  return detail::exp_of(x);
}

/// 1/(1 + e^−x)
template <typename F>
MAGI2_INLINE F sigmoid(F x) {
  return 1.0f / (fast_exp(-x) + 1.0f);
}

/// x·σ(x)
template <typename F>
MAGI2_INLINE F silu(F x) {
  return x / (fast_exp(-x) + 1.0f);
}

/// a·σ(1.702a)·(b + 1) with a ≤ 7, |b| ≤ 7 (model.md section 4).
template <typename F>
MAGI2_INLINE F swiglu7(F a, F b) {
  const F limit = F{} + 7.0f;
  a = a > limit ? limit : a;
  b = b > limit ? limit : b;
  b = b < -limit ? -limit : b;
  return a * sigmoid(a * 1.702f) * (b + 1.0f);
}

/// sin² x within 2e-7 for |x| ≤ kSinLimit; NaN for infinities. x = nπ + r; the sign of the sine does not
/// matter.
inline constexpr float kSinLimit = 8192.0f;
MAGI2_INLINE Floats sin_squared(Floats x) {
  const Floats n = (x * 0.318309886183790672f + 12582912.0f) - 12582912.0f;
  const Floats r = ((x - n * 3.140625f) - n * 9.67502593994140625e-4f) - n * 1.509957990978376432e-7f;
  const Floats r2 = r * r;
  Floats p = r2 * 1.6059043837e-10f - 2.5052108385e-8f;  // 1/13!, −1/11!, …
  p = p * r2 + 2.7557319224e-6f;
  p = p * r2 - 1.9841269841e-4f;
  p = p * r2 + 8.3333333333e-3f;
  p = p * r2 - 1.6666666667e-1f;
  const Floats s = r + r * (r2 * p);
  return s * s;
}

}  // namespace magi
