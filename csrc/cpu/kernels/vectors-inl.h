// Vectors of the instruction set that this translation unit is compiled for, and the exponential and
// logarithm on them.
#pragma once

#include "cpu/kernels/prelude.h"

namespace tim_ext {
namespace TIM_ISA {

template <class T>
struct Simd;

template <>
struct Simd<float> {
  typedef float V __attribute__((vector_size(TIM_VEC_BYTES)));
  typedef float Unaligned __attribute__((vector_size(TIM_VEC_BYTES), aligned(4), may_alias));
  typedef int32_t I __attribute__((vector_size(TIM_VEC_BYTES)));
  typedef uint32_t U __attribute__((vector_size(TIM_VEC_BYTES)));  // for bits: wraps around without complaint
  typedef int32_t Int;
  static constexpr int width = TIM_VEC_BYTES / 4;
  static constexpr int mantissa_bits = 23;
  static constexpr float round_magic = 12582912.0f;  // 1.5 * 2^23: adding it rounds to an integer
  static constexpr float exp2_min = -125.0f;         // exp2 below this is a constant 2e-38, not 0
};

template <>
struct Simd<double> {
  typedef double V __attribute__((vector_size(TIM_VEC_BYTES)));
  typedef double Unaligned __attribute__((vector_size(TIM_VEC_BYTES), aligned(8), may_alias));
  typedef int64_t I __attribute__((vector_size(TIM_VEC_BYTES)));
  typedef uint64_t U __attribute__((vector_size(TIM_VEC_BYTES)));
  typedef int64_t Int;
  static constexpr int width = TIM_VEC_BYTES / 8;
  static constexpr int mantissa_bits = 52;
  static constexpr double round_magic = 6755399441055744.0;  // 1.5 * 2^52
  static constexpr double exp2_min = -1021.0;
};

template <class T>
using Vec = typename Simd<T>::V;
template <class T>
using IVec = typename Simd<T>::I;
template <class T>
using UVec = typename Simd<T>::U;
template <class T>
constexpr int kWidth = Simd<T>::width;

template <class T>
TIM_INLINE Vec<T> load(const T* p) {
  return *reinterpret_cast<const typename Simd<T>::Unaligned*>(p);
}
template <class T>
TIM_INLINE void store(T* p, Vec<T> v) {
  *reinterpret_cast<typename Simd<T>::Unaligned*>(p) = v;
}
template <class T>
TIM_INLINE Vec<T> splat(T x) {
  return x - Vec<T>{};
}
// GCC makes a compare and a blend of (a > b ? a : b), so x86 and Arm name their instructions.
#if defined(__x86_64__)
#if TIM_VEC_BYTES == 64
#define TIM_X86(name, type) _mm512_maskz_##name##_##type
#define TIM_MASK(type) TIM_MASK_##type,  // the unmasked form draws false warnings from GCC 12
#define TIM_MASK_ps __mmask16(-1)
#define TIM_MASK_pd __mmask8(-1)
#elif TIM_VEC_BYTES == 32
#define TIM_X86(name, type) _mm256_##name##_##type
#define TIM_MASK(type)
#else
#define TIM_X86(name, type) _mm_##name##_##type
#define TIM_MASK(type)
#endif
TIM_INLINE Vec<float> vmax(Vec<float> a, Vec<float> b) {
  return (Vec<float>)TIM_X86(max, ps)(TIM_MASK(ps) a, b);
}
TIM_INLINE Vec<float> vmin(Vec<float> a, Vec<float> b) {
  return (Vec<float>)TIM_X86(min, ps)(TIM_MASK(ps) a, b);
}
TIM_INLINE Vec<double> vmax(Vec<double> a, Vec<double> b) {
  return (Vec<double>)TIM_X86(max, pd)(TIM_MASK(pd) a, b);
}
TIM_INLINE Vec<double> vmin(Vec<double> a, Vec<double> b) {
  return (Vec<double>)TIM_X86(min, pd)(TIM_MASK(pd) a, b);
}
#elif defined(__aarch64__)
TIM_INLINE Vec<float> vmax(Vec<float> a, Vec<float> b) { return (Vec<float>)vmaxq_f32(a, b); }
TIM_INLINE Vec<float> vmin(Vec<float> a, Vec<float> b) { return (Vec<float>)vminq_f32(a, b); }
TIM_INLINE Vec<double> vmax(Vec<double> a, Vec<double> b) { return (Vec<double>)vmaxq_f64(a, b); }
TIM_INLINE Vec<double> vmin(Vec<double> a, Vec<double> b) { return (Vec<double>)vminq_f64(a, b); }
#else
template <class V>
TIM_INLINE V vmax(V a, V b) {
  return a > b ? a : b;
}
template <class V>
TIM_INLINE V vmin(V a, V b) {
  return a < b ? a : b;
}
#endif
#if defined(__x86_64__) && TIM_VEC_BYTES == 64
// The four values at p, four times.
TIM_INLINE Vec<float> four_times(const float* p) {
  return (Vec<float>)_mm512_maskz_broadcast_f32x4(__mmask16(-1), _mm_loadu_ps(p));
}
#endif
template <class T>
TIM_INLINE Vec<T> vsqrt(Vec<T> x) {
#if defined(__x86_64__)
  if constexpr (sizeof(T) == 4)
    return (Vec<T>)TIM_X86(sqrt, ps)(TIM_MASK(ps) x);
  else
    return (Vec<T>)TIM_X86(sqrt, pd)(TIM_MASK(pd) x);
#else
  for (int l = 0; l < kWidth<T>; ++l) x[l] = __builtin_sqrt(x[l]);
  return x;
#endif
}
// a where the mask is set, 0 elsewhere; the mask is a comparison's result.
template <class T>
TIM_INLINE Vec<T> keep(IVec<T> mask, Vec<T> a) {
  return (Vec<T>)(mask & (IVec<T>)a);
}

// Sum and largest over lanes, halving the vector each time, so that the order is fixed.
template <class T, class V, int... I>
TIM_INLINE auto halves_sum(V v, std::integer_sequence<int, I...>) {
  return __builtin_shufflevector(v, v, I...) + __builtin_shufflevector(v, v, (I + int(sizeof...(I)))...);
}
template <class T, class V>
TIM_INLINE T reduce_add_of(V v) {
  constexpr int n = int(sizeof(V) / sizeof(T));
  if constexpr (n == 2)
    return v[0] + v[1];
  else
    return reduce_add_of<T>(halves_sum<T>(v, std::make_integer_sequence<int, n / 2>{}));
}
template <class T>
TIM_INLINE T reduce_add(Vec<T> v) {
  return reduce_add_of<T>(v);
}
// The sums of four vectors in the first four lanes, each added in the order of reduce_add.
// fold<h>(a, b): groups of 2h lanes become groups of h lanes, those of a before those of b.
template <class T, int h, int... I>
TIM_INLINE Vec<T> fold(Vec<T> a, Vec<T> b, std::integer_sequence<int, I...>) {
  constexpr int w = kWidth<T>, groups = w / (2 * h);
  return __builtin_shufflevector(a, b, (I / h / groups * w + I / h % groups * 2 * h + I % h)...) +
         __builtin_shufflevector(a, b, (I / h / groups * w + I / h % groups * 2 * h + I % h + h)...);
}
template <class T, int h>
TIM_INLINE Vec<T> fold_rest(Vec<T> v) {
  if constexpr (h == 0)
    return v;
  else
    return fold_rest<T, h / 2>(fold<T, h>(v, v, std::make_integer_sequence<int, kWidth<T>>{}));
}
template <class T>
TIM_INLINE Vec<T> reduce_add4(Vec<T> a, Vec<T> b, Vec<T> c, Vec<T> d) {
  constexpr int w = kWidth<T>;
  static_assert(w >= 4);
  constexpr std::make_integer_sequence<int, w> lanes{};
  return fold_rest<T, w / 8>(fold<T, w / 4>(fold<T, w / 2>(a, b, lanes), fold<T, w / 2>(c, d, lanes), lanes));
}

// out[k] = reduce_add(v[k]), four at a time.
template <int N, class T>
TIM_INLINE void reduce_adds(const Vec<T>* v, T* out) {
  int k = 0;
  if constexpr (kWidth<T> >= 4) {
#pragma GCC unroll 8
    for (; k + 4 <= N; k += 4) {
      const Vec<T> four = reduce_add4<T>(v[k], v[k + 1], v[k + 2], v[k + 3]);
#pragma GCC unroll 4
      for (int j = 0; j < 4; ++j) out[k + j] = four[j];
    }
  }
#pragma GCC unroll 8
  for (; k < N; ++k) out[k] = reduce_add<T>(v[k]);
}

template <class T, int s, int... I>
TIM_INLINE Vec<T> max_with_distance(Vec<T> v, std::integer_sequence<int, I...>) {
  return vmax(v, (Vec<T>)__builtin_shufflevector(v, v, (I ^ s)...));
}
template <class T, int s = kWidth<T> / 2>
TIM_INLINE T reduce_max(Vec<T> v) {
  if constexpr (s == 0)
    return v[0];
  else
    return reduce_max<T, s / 2>(max_with_distance<T, s>(v, std::make_integer_sequence<int, kWidth<T>>{}));
}

// 2^x for x up to the range of T; x below exp2_min counts as exp2_min.
// x = n + f with n an integer and |f| <= 1/2, both exact: 2^x = 2^n 2^f. Working in powers of two instead of e
// makes the reduction two additions, which leaves the multipliers to the polynomial.
template <class T>
TIM_INLINE Vec<T> vexp2(Vec<T> x) {
  using S = Simd<T>;
  x = vmax(splat<T>(S::exp2_min), x);
  const Vec<T> t = x + S::round_magic;  // its low bits hold n in two's complement
  const Vec<T> f = x - (t - S::round_magic);
  Vec<T> y;
  if constexpr (sizeof(T) == 4) {
    // Near-minimax polynomial of degree 6, relative error 2e-9 (scripts/fit_exp2.py).
    y = f * 0.000153533409f + 0.00133989003f;
    y = y * f + 0.00961843761f;
    y = y * f + 0.0555033241f;
    y = y * f + 0.240226479f;
    y = y * f + 0.693147203f;
    y = y * f + T(1);
  } else {
    // Taylor series in f ln 2 to degree 13, relative error 4e-18.
    constexpr double a = kLn2, a2 = a * a, a4 = a2 * a2, a8 = a4 * a4;
    y = f * T(a8 * a4 * a / 6227020800.0) + T(a8 * a4 / 479001600.0);
    y = y * f + T(a8 * a2 * a / 39916800.0);
    y = y * f + T(a8 * a2 / 3628800.0);
    y = y * f + T(a8 * a / 362880.0);
    y = y * f + T(a8 / 40320.0);
    y = y * f + T(a4 * a2 * a / 5040.0);
    y = y * f + T(a4 * a2 / 720.0);
    y = y * f + T(a4 * a / 120.0);
    y = y * f + T(a4 / 24.0);
    y = y * f + T(a2 * a / 6.0);
    y = y * f + T(a2 / 2.0);
    y = y * f + T(a);
    y = y * f + T(1);
  }
  return (Vec<T>)((UVec<T>)y + ((UVec<T>)t << S::mantissa_bits));
}

// log2(x) for normal x > 0. x = 2^e m with m in [2/3, 4/3), s = (m - 1) / (m + 1),
// log2 m = 2 / ln 2 (s + s^3/3 + s^5/5 + ...).
template <class T>
TIM_INLINE Vec<T> vlog2(Vec<T> x) {
  using S = Simd<T>;
  using Bits = std::make_unsigned_t<typename S::Int>;
  constexpr Bits two_thirds = sizeof(T) == 4 ? Bits(0x3f2aaaab) : Bits(0x3fe5555555555555);
  const UVec<T> bits = (UVec<T>)x - two_thirds;
  const IVec<T> e = (IVec<T>)bits >> S::mantissa_bits;
  const Vec<T> m = (Vec<T>)((bits & ((Bits(1) << S::mantissa_bits) - 1)) + two_thirds);
  const Vec<T> s = (m - T(1)) / (m + T(1)), s2 = s * s;
  constexpr int terms = sizeof(T) == 4 ? 5 : 12;  // |s| <= 0.2: the rest is below rounding
  Vec<T> sum = splat<T>(T(2 * kLog2e / (2 * terms + 1)));
#pragma GCC unroll 16
  for (int j = terms - 1; j >= 0; --j) sum = sum * s2 + T(2 * kLog2e / (2 * j + 1));
  return s * sum + __builtin_convertvector(e, Vec<T>);
}

// In-register transpose of a width x width block: log2(width) rounds of exchanging the off-diagonal
// halves of ever smaller sub-blocks.
template <class V, int s, int... I>
TIM_INLINE void exchange(V& a, V& b, std::integer_sequence<int, I...>) {
  constexpr int w = int(sizeof...(I));
  V lo = __builtin_shufflevector(a, b, ((I & s) ? w + I - s : I)...);
  V hi = __builtin_shufflevector(a, b, ((I & s) ? w + I : I + s)...);
  a = lo;
  b = hi;
}
template <class T, int s = kWidth<T> / 2>
TIM_INLINE void transpose(Vec<T> (&r)[kWidth<T>]) {
  if constexpr (s > 0) {
#pragma GCC unroll 16
    for (int i = 0; i < kWidth<T>; ++i)
      if (!(i & s)) exchange<Vec<T>, s>(r[i], r[i + s], std::make_integer_sequence<int, kWidth<T>>{});
    transpose<T, s / 2>(r);
  }
}

}  // namespace TIM_ISA
}  // namespace tim_ext
