// Vectors of the instruction set that this translation unit is compiled for, and the exponential and
// logarithm on them. Included inside the instruction set's own namespace (see kernels.inc).

#define TIM_INLINE inline __attribute__((always_inline))

template <class T>
struct Simd;

template <>
struct Simd<float> {
  typedef float V __attribute__((vector_size(TIM_VEC_BYTES)));
  typedef float Unaligned __attribute__((vector_size(TIM_VEC_BYTES), aligned(4), may_alias));
  typedef int32_t I __attribute__((vector_size(TIM_VEC_BYTES)));
  typedef int32_t Int;
  static constexpr int width = TIM_VEC_BYTES / 4;
  static constexpr int mantissa_bits = 23;
  static constexpr Int exponent_bias = 127;
  static constexpr float log2e = 1.44269504f, ln2_hi = 0.693359375f, ln2_lo = -2.12194440e-4f;
  static constexpr float round_magic = 12582912.0f;  // 1.5 * 2^23: adding it rounds to an integer
  static constexpr float exp_min = -86.0f;           // exp below this is a constant 4e-38, not 0
  static constexpr float tiny = 1e-30f, huge = 1e30f;
};

template <>
struct Simd<double> {
  typedef double V __attribute__((vector_size(TIM_VEC_BYTES)));
  typedef double Unaligned __attribute__((vector_size(TIM_VEC_BYTES), aligned(8), may_alias));
  typedef int64_t I __attribute__((vector_size(TIM_VEC_BYTES)));
  typedef int64_t Int;
  static constexpr int width = TIM_VEC_BYTES / 8;
  static constexpr int mantissa_bits = 52;
  static constexpr Int exponent_bias = 1023;
  static constexpr double log2e = 1.4426950408889634074, ln2_hi = 0.693147180369123816490,
                          ln2_lo = 1.90821492927058770002e-10;
  static constexpr double round_magic = 6755399441055744.0;  // 1.5 * 2^52
  static constexpr double exp_min = -706.0;
  static constexpr double tiny = 1e-280, huge = 1e280;
};

template <class T>
using Vec = typename Simd<T>::V;
template <class T>
using IVec = typename Simd<T>::I;
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
template <class V>
TIM_INLINE V vmax(V a, V b) {
  return a > b ? a : b;
}
template <class V>
TIM_INLINE V vmin(V a, V b) {
  return a < b ? a : b;
}
// a where the mask is set, 0 elsewhere; the mask is a comparison's result.
template <class T>
TIM_INLINE Vec<T> keep(IVec<T> mask, Vec<T> a) {
  return (Vec<T>)(mask & (IVec<T>)a);
}

// Sums and extrema over lanes, pairwise, so that the order is fixed.
template <class T>
TIM_INLINE T reduce_add(Vec<T> v) {
  T lane[kWidth<T>];
  store(lane, v);
  for (int n = kWidth<T> / 2; n > 0; n /= 2)
    for (int i = 0; i < n; ++i) lane[i] += lane[i + n];
  return lane[0];
}
template <class T>
TIM_INLINE T reduce_max(Vec<T> v) {
  T m = v[0];
  for (int i = 1; i < kWidth<T>; ++i) m = v[i] > m ? v[i] : m;
  return m;
}

// exp(x) for x <= ~88 (float) or ~700 (double); x below exp_min counts as exp_min.
// x = n ln 2 + r, |r| <= ln 2 / 2, exp(x) = 2^n exp(r).
template <class T>
TIM_INLINE Vec<T> vexp(Vec<T> x) {
  using S = Simd<T>;
  x = vmax(splat<T>(S::exp_min), x);
  Vec<T> t = x * S::log2e + S::round_magic;
  IVec<T> n = (IVec<T>)t;
  Vec<T> nf = t - S::round_magic;
  Vec<T> r = x - nf * S::ln2_hi;
  r = r - nf * S::ln2_lo;
  Vec<T> y;
  if constexpr (sizeof(T) == 4) {
    // Minimax polynomial of degree 6, relative error 3e-9 (scripts/fit_exp.py).
    y = r * 0.00138146102f + 0.00836871116f;
    y = y * r + 0.0416683875f;
    y = y * r + 0.166665207f;
    y = y * r + 0.499999935f;
    y = (y * r) * r + r;
    y = y + T(1);
  } else {
    // Taylor series to degree 13, relative error 4e-18.
    y = r * T(1.0 / 6227020800.0) + T(1.0 / 479001600.0);
    y = y * r + T(1.0 / 39916800.0);
    y = y * r + T(1.0 / 3628800.0);
    y = y * r + T(1.0 / 362880.0);
    y = y * r + T(1.0 / 40320.0);
    y = y * r + T(1.0 / 5040.0);
    y = y * r + T(1.0 / 720.0);
    y = y * r + T(1.0 / 120.0);
    y = y * r + T(1.0 / 24.0);
    y = y * r + T(1.0 / 6.0);
    y = y * r + T(0.5);
    y = (y * r) * r + r;
    y = y + T(1);
  }
  // Add n to the exponent; the low bits of t hold n in two's complement.
  return (Vec<T>)((IVec<T>)y + (n << S::mantissa_bits));
}

// log(x) for normal x > 0. x = 2^e m with m in [2/3, 4/3), s = (m - 1) / (m + 1),
// log m = 2 (s + s^3/3 + s^5/5 + ...).
template <class T>
TIM_INLINE Vec<T> vlog(Vec<T> x) {
  using S = Simd<T>;
  using Int = typename S::Int;
  constexpr Int two_thirds = sizeof(T) == 4 ? Int(0x3f2aaaab) : Int(0x3fe5555555555555);
  IVec<T> bits = (IVec<T>)x - two_thirds;
  IVec<T> e = bits >> S::mantissa_bits;
  Vec<T> m = (Vec<T>)((bits & ((Int(1) << S::mantissa_bits) - 1)) + two_thirds);
  Vec<T> s = (m - T(1)) / (m + T(1)), s2 = s * s;
  constexpr int terms = sizeof(T) == 4 ? 5 : 12;  // |s| <= 0.2: the rest is below rounding
  Vec<T> sum = splat<T>(T(2.0 / (2 * terms + 1)));
#pragma GCC unroll 16
  for (int j = terms - 1; j >= 0; --j) sum = sum * s2 + T(2.0 / (2 * j + 1));
  Vec<T> ef = __builtin_convertvector(e, Vec<T>);
  return ef * S::ln2_hi + (ef * S::ln2_lo + s * sum);
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
