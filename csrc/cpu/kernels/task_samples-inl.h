// The samples of a task in the cache: what the methods behind tim_ext.baselines share.
#pragma once

#include "cpu/kernels/gather_tasks-inl.h"
#include "cpu/kernels/prelude.h"
#include "cpu/kernels/tiles-inl.h"
#include "cpu/kernels/workspace-inl.h"

namespace tim_ext {
namespace TIM_ISA {

constexpr int64_t kGramRows = 12;

// z [N, d], 0 for padding, and sums and products of its rows.
template <class T>
class TaskSamples {
 public:
  static constexpr int64_t kSummed = 256;  // rows that are added in T; sums of those are added in float64
  const int64_t N, K, d;
  const int64_t* labels = nullptr;  // [N]
  T* z;                             // [N, d]
  const T** rows;                   // [N]
  T* one;                           // [N] of ones
  T* square;                        // [N] ||z_i||^2

  // sums: the most coefficients that `sum` is asked for
  TaskSamples(const GatherTasks<T>& s, int64_t sums, Arena& arena)
      : N(s.shape.samples), K(s.shape.classes), d(s.shape.dim), s_(s), gather_(s, arena) {
    z = arena.take<T>(N * d);
    rows = arena.take<const T*>(N);
    one = arena.take<T>(N);
    square = arena.take<T>(N);
    if (N > kSummed) {
      part_ = arena.take<T>(sums * d);
      total_ = arena.take<double>(sums * d);
    }
  }

  // False if the square of a length overflowed: then p is filled with NaN, which is refused.
  bool take(int64_t task, const MethodOutputs<T>& out) {
    labels = s_.labels + task * N;
    gather_.run(task, z);
    for (int64_t i = 0; i < N; ++i) {
      rows[i] = z + i * d;
      one[i] = T(1);
      square[i] = squared_norm<T>(rows[i], d);
    }
    for (int64_t i = 0; i < N; ++i) {
      if (square[i] <= std::numeric_limits<T>::max()) continue;
      for (int64_t j = 0; j < K * N; ++j) out.probs[task * K * N + j] = std::numeric_limits<T>::quiet_NaN();
      for (int64_t j = 0; j < K * d; ++j) out.weights[task * K * d + j] = T(0);
      return false;
    }
    return true;
  }

  // out[k, :] = sum_i a[k * ld + i] z_i for k < columns
  void sum(const T* a, int64_t ld, int64_t columns, T* out) {
    if (N <= kSummed) return accumulate_rows(PlainRows<T>{rows}, N, a, ld, columns, d, false, out, d);
    for (int64_t j = 0; j < columns * d; ++j) total_[j] = 0;
    for (int64_t i = 0; i < N; i += kSummed) {
      accumulate_rows(PlainRows<T>{rows + i}, N - i < kSummed ? N - i : kSummed, a + i, ld, columns, d, false,
                      part_, d);
      for (int64_t j = 0; j < columns * d; ++j) total_[j] += double(part_[j]);
    }
    for (int64_t j = 0; j < columns * d; ++j) out[j] = T(total_[j]);
  }
  // out[k * ld + i] = w_k . z_i for k < columns
  void products(const T* w, int64_t columns, T* out, int64_t ld) const {
    dot_rows(PlainRows<T>{rows}, one, N, w, d, columns, d, out, ld);
  }
  // The prototypes: w [K, d], by coefficients [K, ld] that are overwritten.
  void prototypes(T* coefficients, int64_t ld, T* w) {
    for (int64_t k = 0; k < K; ++k) {
      int64_t shots = 0;
      for (int64_t i = 0; i < N; ++i) shots += labels[i] == k;
      for (int64_t i = 0; i < ld; ++i)
        coefficients[k * ld + i] = i < N && labels[i] == k ? T(1 / double(shots)) : T(0);
    }
    sum(coefficients, ld, K, w);
  }

 private:
  const GatherTasks<T>& s_;
  GatherTask<T> gather_;
  T* part_ = nullptr;
  double* total_ = nullptr;
};

template <class T>
TIM_INLINE T dot(const T* a, const T* b, int64_t dim) {
  Vec<T> sum = Vec<T>{};
  int64_t c = 0;
  for (; c + kWidth<T> <= dim; c += kWidth<T>) sum += load(a + c) * load(b + c);
  T rest = reduce_add<T>(sum);
  for (; c < dim; ++c) rest += a[c] * b[c];
  return rest;
}

// z_i . z_j of n rows x, dense from z on, for i < n and `count` rows j from j0 on: row j - j0 of `out` [.., ld]. Each product is
// the same whichever of the two comes first, so that half of them will do.
template <class T>
void gram_rows(const T* const* x, const T* one, int64_t n, const T* z, int64_t d, int64_t j0, int64_t count,
               T* out, int64_t ld) {
  dot_rows(PlainRows<T>{x}, one, n, z + j0 * d, d, count, d, out, ld);
}
// The whole matrix [n, ld], 0 beyond its columns.
template <class T>
void gram_matrix(const T* const* x, const T* one, int64_t n, const T* z, int64_t d, T* out, int64_t ld) {
  for (int64_t j0 = 0; j0 < n; j0 += kGramRows) {
    const int64_t count = n - j0 < kGramRows ? n - j0 : kGramRows;
    gram_rows(x, one, j0 + count, z, d, j0, count, out + j0 * ld, ld);
  }
  for (int64_t j = 0; j < n; ++j) {
    for (int64_t i = j + 1; i < n; ++i) out[j * ld + i] = out[i * ld + j];
    for (int64_t i = n; i < ld; ++i) out[j * ld + i] = T(0);
  }
}

// a / b for lengths b: 0 counts as 1, and one that overflowed gives NaN, which is refused.
template <class T>
TIM_INLINE T divide_by_length(T a, T b) {
  if (b == T(0)) return a;
  return b <= std::numeric_limits<T>::max() ? a / b : std::numeric_limits<T>::quiet_NaN();
}

// The cosine of two rows of any lengths; 0 if one of them is 0.
template <class T>
T cosine_of(const T* a, const T* b, int64_t dim) {
  double most[2] = {0, 0}, square[2] = {0, 0}, product = 0;
  for (int64_t c = 0; c < dim; ++c) {
    most[0] = __builtin_fabs(double(a[c])) > most[0] ? __builtin_fabs(double(a[c])) : most[0];
    most[1] = __builtin_fabs(double(b[c])) > most[1] ? __builtin_fabs(double(b[c])) : most[1];
  }
  if (most[0] == 0 || most[1] == 0) return T(0);
  for (int64_t c = 0; c < dim; ++c) {
    const double x = double(a[c]) / most[0], y = double(b[c]) / most[1];
    square[0] += x * x;
    square[1] += y * y;
    product += x * y;
  }
  return T(product / __builtin_sqrt(square[0] * square[1]));
}

}  // namespace TIM_ISA
}  // namespace tim_ext
