// distance_softmax of some rows of a task: log p and p, from the features in one pass.
#pragma once

#include "cpu/kernels/prelude.h"
#include "cpu/kernels/sample_major-inl.h"
#include "cpu/kernels/step_rows-inl.h"

namespace tim_ext {
namespace TIM_ISA {

// w_k - w_K for k < K - 1, and w_K, as RowVectors [K][pitch].
template <class T>
void class_differences(const T* weights, int64_t row, int64_t K, RowVectors<T> vectors, T* out) {
  const int64_t pitch = vectors.pitch();
  const T* const last = weights + (K - 1) * row;
  for (int64_t k = 0; k < K; ++k)
    for (int64_t v = 0; v < vectors.count; ++v) {
      T lane[kWidth<T>] = {};
      const int64_t at = vectors.at(v);
      T* const o = out + k * pitch + v * kWidth<T>;
      if (vectors.fresh(v) == 0 && at + kWidth<T> <= vectors.dim) {
        const Vec<T> w = load(weights + k * row + at);
        store(o, k < K - 1 ? w - load(last + at) : w);
        continue;
      }
      for (int64_t l = vectors.fresh(v); l < kWidth<T> && at + l < vectors.dim; ++l)
        lane[l] = weights[k * row + at + l] - (k < K - 1 ? last[at + l] : T(0));
      store(o, load(lane));
    }
}

// out[k * ld + s] = (x_s - w_K) . (w_k - w_K) for NR classes and NS rows.
template <class T, int NR, int NS, bool is_short, bool fetches, class In>
TIM_INLINE void dot_tile(RowPointers<In, NS> x, const T* difference, const T* last, RowVectors<T> vectors,
                         T* out, int64_t ld) {
  constexpr int W = kWidth<T>;
  const int64_t pitch = vectors.pitch();
  Vec<T> acc[NR][NS] = {};
  vectors.each([&](int64_t v, int64_t at) TIM_LAMBDA_INLINE {
    const Vec<T> shared = load(last + v * W);
    Vec<T> xv[NS];
#pragma GCC unroll 8
    for (int s = 0; s < NS; ++s) xv[s] = load_at<T, is_short>(x.row[s], at, vectors.dim) - shared;
    if (fetches && starts_line<T, In>(v))
#pragma GCC unroll 8
      for (int s = 0; s < NS; ++s) fetch(x.ahead[s] + at);
#pragma GCC unroll 8
    for (int r = 0; r < NR; ++r) {
      Vec<T> d = load(difference + r * pitch + v * W);
      in_register(d);
#pragma GCC unroll 8
      for (int s = 0; s < NS; ++s) acc[r][s] += xv[s] * d;
    }
  });
#pragma GCC unroll 8
  for (int r = 0; r < NR; ++r) {
    if constexpr (W >= 4) {
      const Vec<T> sums =
          reduce_add4<T>(acc[r][0], acc[r][NS > 1 ? 1 : 0], acc[r][NS > 2 ? 2 : 0], acc[r][NS > 3 ? 3 : 0]);
#pragma GCC unroll 4
      for (int s = 0; s < NS; ++s) out[r * ld + s] = sums[s];
    } else {
      for (int s = 0; s < NS; ++s) out[r * ld + s] = reduce_add<T>(acc[r][s]);
    }
  }
}

// logits [K - 1][ld] = (z_i - w_K) . (w_k - w_K) for n rows; `next` is the row that is read after them.
template <bool is_short, class T, class In>
void centred_dots(const In* rows, int64_t row, int64_t n, const In* next, const T* difference, int64_t K,
                  RowVectors<T> vectors, T* logits, int64_t ld) {
  const T* const last = difference + (K - 1) * vectors.pitch();
  for_rows<kWideVectors>(rows, row, n, next, [&](int64_t i, auto x) {
    constexpr int NS = sizeof(x.row) / sizeof(x.row[0]);
    for_row_tiles<kWideRows>(K - 1, [&](int64_t k, auto nr) {
      constexpr int NR = decltype(nr)::value;
      const T* const d = difference + k * vectors.pitch();
      if (k == 0)
        dot_tile<T, NR, NS, is_short, true>(x, d, last, vectors, logits + k * ld + i, ld);
      else
        dot_tile<T, NR, NS, is_short, false>(x, d, last, vectors, logits + k * ld + i, ld);
    });
  });
}

// In place of the products above p_ik, and into log_p its natural logarithm:
//   l_ik = tau (z_i - w_K) . (w_k - w_K) - shift_k,   l_iK = 0
template <class T>
void softmax_rows(int64_t K, T tau, const T* shift, int64_t n, T* p, T* log_p, int64_t ld) {
  constexpr int W = kWidth<T>;
  for (int64_t i = 0; i < n; i += W) {
    Vec<T> top = Vec<T>{}, total = Vec<T>{};
    for (int64_t k = 0; k < K; ++k) {
      const Vec<T> l = k < K - 1 ? load(p + k * ld + i) * tau - shift[k] : Vec<T>{};
      store(log_p + k * ld + i, l);
      top = vmax(top, l);
    }
    for (int64_t k = 0; k < K; ++k) {
      const Vec<T> l = load(log_p + k * ld + i) - top, e = vexp2<T>(l);
      store(log_p + k * ld + i, l);
      store(p + k * ld + i, e);
      total += e;
    }
    const Vec<T> log_total = vlog2<T>(total), inverse = T(1) / total;
    for (int64_t k = 0; k < K; ++k) {
      store(p + k * ld + i, load(p + k * ld + i) * inverse);
      store(log_p + k * ld + i, (load(log_p + k * ld + i) - log_total) * T(kLn2));
    }
  }
}

// log p and p of the samples i0 .. i0 + n - 1 (n <= kStepRows) of a task.
template <class T>
void distance_softmax_step(const Laid<DistanceSoftmax<T>>& s, int64_t task, int64_t i0, int64_t n,
                           void* work) {
  Arena arena(work);
  const int64_t K = s.shape.classes, N = s.shape.samples;
  const RowVectors<T> vectors(s.shape.dim);
  T* difference = arena.take<T>(K * vectors.pitch());
  T* shift = arena.take<T>(K);
  T* p = arena.take<T>(K * kStepRows);
  T* log_p = arena.take<T>(K * kStepRows);
  class_differences(s.weights + task * s.layout.weight_task, s.layout.weight_row, K, vectors, difference);
  for (int64_t k = 0; k < K - 1; ++k)
    shift[k] = s.c.tau / 2 * squared_norm<T>(difference + k * vectors.pitch(), vectors.pitch());
  for (int64_t k = 0; k < K; ++k) store(p + k * kStepRows + (n - 1) / kWidth<T> * kWidth<T>, Vec<T>{});
  with_task_rows<T>(s, task, [&](auto* rows) {
    const int64_t row = s.layout.feature_row;
    auto* const next = i0 + n < N ? rows + (i0 + n) * row : rows + s.layout.feature_task;
    if (vectors.dim < kWidth<T>)
      centred_dots<true>(rows + i0 * row, row, n, next, difference, K, vectors, p, kStepRows);
    else
      centred_dots<false>(rows + i0 * row, row, n, next, difference, K, vectors, p, kStepRows);
  });
  softmax_rows(K, s.c.tau, shift, n, p, log_p, kStepRows);
  const int64_t at = (task * N + i0) * K;
  to_sample_major(p, kStepRows, n, K, s.probs + at);
  to_sample_major(log_p, kStepRows, n, K, s.log_probs + at);
}

}  // namespace TIM_ISA
}  // namespace tim_ext
