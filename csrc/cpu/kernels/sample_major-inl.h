// Arrays of the caller are sample-major, [n, K]; what works on samples side by side wants them class-major: element (k, i)
// at [k * ld + i]. Squares of elements are transposed in registers on the way: as wide as a vector or, for so few classes
// that it suffices, two squares of half that width side by side.
#pragma once

#include "cpu/kernels/prelude.h"
#include "cpu/kernels/vectors-inl.h"

namespace tim_ext {
namespace TIM_ISA {

// C consecutive elements.
template <class T, int C>
struct Short {
  typedef T V __attribute__((vector_size(C * sizeof(T)), aligned(sizeof(T)), may_alias));
};
template <class T, int C, int... I>
TIM_INLINE Vec<T> join(const T* low, const T* high, std::integer_sequence<int, I...>) {
  using V = typename Short<T, C>::V;
  return __builtin_shufflevector(*reinterpret_cast<const V*>(low), *reinterpret_cast<const V*>(high), I...);
}
template <class T, int C, int... I>
TIM_INLINE void store_low(T* p, Vec<T> v, std::integer_sequence<int, I...>) {
  *reinterpret_cast<typename Short<T, C>::V*>(p) = __builtin_shufflevector(v, v, I...);
}
template <class T, int C, int... I>
TIM_INLINE void store_high(T* p, Vec<T> v, std::integer_sequence<int, I...>) {
  *reinterpret_cast<typename Short<T, C>::V*>(p) = __builtin_shufflevector(v, v, (I + C)...);
}

// C = W: `transpose`; C = W / 2: of both halves. The one is the inverse of itself.
template <class T, int C, int s = C / 2>
TIM_INLINE void transpose_squares(Vec<T> (&r)[C]) {
  if constexpr (s > 0) {
#pragma GCC unroll 16
    for (int i = 0; i < C; ++i)
      if (!(i & s)) exchange<Vec<T>, s>(r[i], r[i + s], std::make_integer_sequence<int, kWidth<T>>{});
    transpose_squares<T, C, s / 2>(r);
  }
}

// Classes k .. k + C - 1 (but no more than K) of a vector of samples from sample i on.
template <class T, int C>
TIM_INLINE void squares_in(const T* rows, int64_t n, int64_t K, int64_t i, int64_t k, T* block, int64_t ld) {
  constexpr int W = kWidth<T>;
  constexpr std::make_integer_sequence<int, W> lanes{};
  const int64_t classes = K - k < C ? K - k : C;
  Vec<T> square[C];
  T edge[W][C];
  const bool inside = (i + W - 1) * K + k + C <= n * K;  // no read behind the last row
  if (!inside) {
    for (int64_t s = 0; s < W; ++s)
      for (int64_t c = 0; c < C; ++c)
        edge[s][c] = i + s < n && c < classes ? rows[(i + s) * K + k + c] : T(0);
  }
  const T* const first = inside ? rows + i * K + k : edge[0];
  const int64_t step = inside ? K : C;
#pragma GCC unroll 16
  for (int s = 0; s < C; ++s) {
    if constexpr (C == W)
      square[s] = load(first + s * step);
    else
      square[s] = join<T, C>(first + s * step, first + (s + C) * step, lanes);
  }
  transpose_squares<T, C>(square);
#pragma GCC unroll 16
  for (int c = 0; c < C; ++c)
    if (c < classes) store(block + (k + c) * ld + i, square[c]);
}
template <class T, int C>
TIM_INLINE void squares_out(const T* block, int64_t ld, int64_t n, int64_t K, int64_t i, int64_t k, T* rows) {
  constexpr int W = kWidth<T>;
  constexpr std::make_integer_sequence<int, C> part{};
  const int64_t classes = K - k < C ? K - k : C;
  Vec<T> square[C];
#pragma GCC unroll 16
  for (int c = 0; c < C; ++c) square[c] = c < classes ? load(block + (k + c) * ld + i) : Vec<T>{};
  transpose_squares<T, C>(square);
  T edge[W][C];
  const bool inside = (i + W - 1) * K + k + C <= n * K;
  T* const first = inside ? rows + i * K + k : edge[0];
  const int64_t step = inside ? K : C;
#pragma GCC unroll 16
  for (int s = 0; s < C; ++s) store_low<T, C>(first + s * step, square[s], part);
  if constexpr (C < W)
#pragma GCC unroll 16
    for (int s = 0; s < C; ++s) store_high<T, C>(first + (s + C) * step, square[s], part);
  if (!inside)
    for (int64_t s = 0; s < W && i + s < n; ++s)
      for (int64_t c = 0; c < classes; ++c) rows[(i + s) * K + k + c] = edge[s][c];
}

template <class T, class F>
TIM_INLINE void with_square(int64_t classes, F&& f) {
  constexpr int W = kWidth<T>;
  if constexpr (W >= 4) {
    if (classes <= W / 2) return f(std::integral_constant<int, W / 2>{});
  }
  f(std::integral_constant<int, W>{});
}

// block(k, i) = rows[i * K + k] for i < n, and 0 up to a whole vector of samples; ld is a multiple of the vector width.
template <class T>
void to_class_major(const T* rows, int64_t n, int64_t K, T* block, int64_t ld) {
  with_square<T>(K, [&](auto size) {
    constexpr int C = decltype(size)::value;
    for (int64_t i = 0; i < n; i += kWidth<T>)
      for (int64_t k = 0; k < K; k += C) squares_in<T, C>(rows, n, K, i, k, block, ld);
  });
}

// rows[i * K + k] = block(k, i) for i < n. Squares are stored whole where rows are shorter: what they write behind a row, the
// next one replaces. So the classes that do not fill a square come first.
template <class T>
void to_sample_major(const T* block, int64_t ld, int64_t n, int64_t K, T* rows) {
  with_square<T>(K, [&](auto size) {
    constexpr int C = decltype(size)::value;
    for (int64_t i = 0; i < n; i += kWidth<T>)
      for (int64_t k = (K - 1) / C * C; k >= 0; k -= C) squares_out<T, C>(block, ld, n, K, i, k, rows);
  });
}

}  // namespace TIM_ISA
}  // namespace tim_ext
