// The steps of TIM-ADM as functions of their own, for one task, in terms of the solvers' building blocks.
// Arrays of the caller are sample-major, [N, K]; blocks are class-major.
#pragma once

#include "cpu/kernels/blocks-inl.h"
#include "cpu/kernels/iteration-inl.h"
#include "cpu/kernels/prelude.h"
#include "cpu/kernels/rows-inl.h"
#include "cpu/kernels/tiles-inl.h"

namespace tim_ext {
namespace TIM_ISA {

constexpr int64_t kCentredRows =
    12;  // samples of distance_softmax that are centred at a time: they stay in L1

// log p and p of rows i0 .. i0 + n - 1 (n <= kStepRows) of a task.
template <class T>
void distance_softmax_step(const DistanceSoftmax<T>& s, int64_t task, int64_t i0, int64_t n, void* work) {
  Arena arena(work);
  const int64_t K = s.shape.classes, d = s.shape.dim, N = s.shape.samples;
  const T* const features = s.features + task * N * d;
  T* const probs = s.probs + task * N * K;
  T* const log_probs = s.log_probs + task * N * K;
  T* difference = arena.take<T>(K * d);  // w_k - w_K
  T* last = arena.take<T>(round_up(d, kWidth<T>));
  T* centred = arena.take<T>(kCentredRows * d);
  T* shift = arena.take<T>(K);
  T* scale = arena.take<T>(kStepRows);
  const T** x = arena.take<const T*>(kStepRows);
  T* none = arena.take<T>(kStepRows);  // weights: no sum over samples is wanted
  Block<T> b;
  b.logits = arena.take<T>(K * kStepRows);
  b.log_total = arena.take<T>(kStepRows);
  b.inverse = arena.take<T>(kStepRows);
  b.p = arena.take<T>(K * kStepRows);
  b.ld = kStepRows;
  b.weight = none;
  b.p_weight = arena.take<T>(kStepRows);
  b.vectors = (n + kWidth<T> - 1) / kWidth<T>;
  Sums<T> sums;
  sums.p = arena.take<T>(K);

  Coefficients<T> c;
  c.tau = s.c.tau;
  const T* const weights = s.weights + task * K * d;
  for (int64_t j = 0; j < d; ++j) last[j] = weights[(K - 1) * d + j];
  for (int64_t j = d; j < round_up(d, kWidth<T>); ++j) last[j] = T(0);
  for (int64_t k = 0; k < K - 1; ++k) {
    centre_row(weights + k * d, T(1), last, d, difference + k * d);
    shift[k] = c.tau / 2 * squared_norm<T>(difference + k * d, d);
  }
  for (int64_t i = 0; i < kStepRows; ++i) {
    none[i] = T(0);
    scale[i] = T(1);
    x[i] = centred + i % kCentredRows * d;
  }
  for (int64_t j = 0; j < K * kStepRows; ++j) b.logits[j] = T(0);
  for (int64_t first = 0; first < n; first += kCentredRows) {
    const int64_t count = n - first < kCentredRows ? n - first : kCentredRows;
    for (int64_t i = 0; i < count; ++i)
      centre_row(features + (i0 + first + i) * d, T(1), last, d, centred + i * d);
    dot_rows(x, scale, count, difference, d, K - 1, d, b.logits + first, kStepRows);
  }
  softmax_block<0, false>(K, c, shift, b, sums);
  finish_block(K, b);
  for (int64_t i = 0; i < n; ++i)
    for (int64_t k = 0; k < K; ++k) {
      probs[(i0 + i) * K + k] = b.p[k * kStepRows + i];
      log_probs[(i0 + i) * K + k] = b.logits[k * kStepRows + i] * T(kLn2);
    }
}

// q of a task.
template <class T>
void q_update_step(const QUpdate<T>& s, int64_t task, void* work) {
  Arena arena(work);
  const int64_t K = s.shape.classes, N = s.shape.samples;
  const T power = s.c.power;
  const T* const log_probs = s.log_probs + task * N * K;
  const int64_t* const labels = s.labels + task * N;
  T* const q = s.assignments + task * N * K;
  T* largest = arena.take<T>(K);
  double* sum = arena.take<double>(K);
  T* factor = arena.take<T>(K);
  for (int64_t k = 0; k < K; ++k) {
    largest[k] = -std::numeric_limits<T>::max();
    sum[k] = 0;
  }
  for (int64_t i = 0; i < N; ++i)
    if (labels[i] == kQuery)
      for (int64_t k = 0; k < K; ++k) {
        const T value = power * log_probs[i * K + k];
        largest[k] = value > largest[k] ? value : largest[k];
      }
  // q = exp(q), all samples and classes in one row of vectors: few classes would leave most of a vector unused.
  constexpr int W = kWidth<T>;
  auto exponential = [&] {
    int64_t j = 0;
    for (; j + W <= N * K; j += W) store(q + j, vexp2<T>(load(q + j) * T(kLog2e)));
    if (j < N * K) {
      const Vec<T> tail = vexp2<T>(load_row_tail<T>(q + j, N * K - j) * T(kLog2e));
      for (int64_t l = 0; j + l < N * K; ++l) q[j + l] = tail[l];
    }
  };
  for (int64_t i = 0; i < N; ++i)
    for (int64_t k = 0; k < K; ++k)
      q[i * K + k] = labels[i] == kQuery ? power * log_probs[i * K + k] - largest[k] : T(0);
  exponential();
  for (int64_t i = 0; i < N; ++i)
    if (labels[i] == kQuery)
      for (int64_t k = 0; k < K; ++k) sum[k] += double(q[i * K + k]);
  for (int64_t k = 0; k < K; ++k) factor[k] = q_offset(s.c, largest[k] + T(__builtin_log(sum[k])), T(0));
  for (int64_t i = 0; i < N; ++i) {
    if (labels[i] != kQuery) continue;
    T* row = q + i * K;
    T top = -std::numeric_limits<T>::max();
    for (int64_t k = 0; k < K; ++k) {
      row[k] = power * log_probs[i * K + k] - factor[k];
      top = row[k] > top ? row[k] : top;
    }
    for (int64_t k = 0; k < K; ++k) row[k] -= top;
  }
  exponential();
  for (int64_t i = 0; i < N; ++i) {
    T* row = q + i * K;
    if (labels[i] != kQuery) {
      for (int64_t k = 0; k < K; ++k) row[k] = T(labels[i] == k);
      continue;
    }
    T total = 0;
    for (int64_t k = 0; k < K; ++k) total += row[k];
    const T inverse = T(1) / total;
    for (int64_t k = 0; k < K; ++k) row[k] *= inverse;
  }
}

// Columns c0 .. c0 + n - 1 of the new weights of a task.
template <class T>
void w_update_step(const WUpdate<T>& s, int64_t task, int64_t c0, int64_t n, void* work) {
  Arena arena(work);
  const int64_t K = s.shape.classes, N = s.shape.samples, d = s.shape.dim;
  const T* const features = s.features + task * N * d;
  const T* const weights = s.weights + task * K * d;
  const T* const probs = s.probs + task * N * K;
  const T* const assignments = s.assignments + task * N * K;
  const int64_t* const labels = s.labels + task * N;
  T* const out = s.out + task * K * d;
  double* b = arena.take<double>(K);
  double* t = arena.take<double>(K);
  T* coef = arena.take<T>(K * kStepRows);
  const T** x = arena.take<const T*>(kStepRows);
  int64_t support = 0, query = 0;
  for (int64_t i = 0; i < N; ++i) {
    support += labels[i] >= 0;
    query += labels[i] == kQuery;
  }
  const T on_support = s.c.support, on_query = query_weight<T>(double(support), double(query));
  for (int64_t k = 0; k < K; ++k) b[k] = t[k] = 0;
  for (int64_t i0 = 0; i0 < N; i0 += kStepRows) {
    const int64_t rows = N - i0 < kStepRows ? N - i0 : kStepRows;
    for (int64_t i = 0; i < rows; ++i) {
      const int64_t label = labels[i0 + i];
      const T c = label >= 0 ? on_support : label == kQuery ? on_query : T(0);
      x[i] = features + (i0 + i) * d + c0;
      for (int64_t k = 0; k < K; ++k) {
        const T p = probs[(i0 + i) * K + k], target = assignments[(i0 + i) * K + k];
        coef[k * kStepRows + i] = c == T(0) ? T(0) : c * (target - p);
        b[k] += c == T(0) ? 0.0 : double(c * p);
        t[k] += c == T(0) ? 0.0 : double(c * target);
      }
    }
    accumulate_rows(x, rows, coef, kStepRows, K, n, i0 > 0, out + c0, d);
  }
  for (int64_t k = 0; k < K; ++k)
    for (int64_t c = c0; c < c0 + n; ++c)
      out[k * d + c] = stepped(T(t[k]), T(b[k]), weights[k * d + c], out[k * d + c]);
}

inline int64_t step_workspace(const StepShape& shape) {
  const int64_t K = shape.classes;
  const int64_t centred = (kCentredRows + 1) * shape.dim;
  return (K * shape.dim + centred + K * (2 * kStepRows + 2 * 8 + 8) + 7 * kStepRows) * 8 + 20 * 64;
}

}  // namespace TIM_ISA
}  // namespace tim_ext
