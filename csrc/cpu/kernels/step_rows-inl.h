// What the steps of TIM-ADM share as functions of their own, for one task or a piece of it: reading rows. The features of a
// batch come from memory, and the arithmetic hides behind that: each row is read once for all classes, and the rows after those
// at work are fetched ahead.
#pragma once

#include "cpu/kernels/prelude.h"
#include "cpu/kernels/rows-inl.h"
#include "cpu/kernels/tiles-inl.h"
#include "cpu/kernels/workspace-inl.h"

namespace tim_ext {
namespace TIM_ISA {

constexpr int64_t kCacheLine = 64;
constexpr int64_t kRowsAhead = TIM_VEC_BYTES == 64 ? 4 : 8;  // that are fetched

// A row of `dim` elements as vectors: whole ones, then one that ends with the row. What that one has in common with the vector
// before it is 0 in every array that weighs it; a row shorter than a vector is filled up with zeros.
template <class T>
struct RowVectors {
  static constexpr int W = kWidth<T>;
  int64_t dim, count;
  explicit RowVectors(int64_t d) : dim(d), count((d + W - 1) / W) {}
  int64_t at(int64_t v) const { return v + 1 < count || dim < W ? v * W : dim - W; }
  int64_t fresh(int64_t v) const {
    return v + 1 < count || dim < W ? 0 : count * W - dim;
  }  // its first new lane
  int64_t pitch() const { return count * W; }
  // f(v, first element) for every vector
  template <class F>
  TIM_INLINE void each(F&& f) const {
    for (int64_t v = 0; v < count - 1; ++v) f(v, v * W);
    f(count - 1, at(count - 1));
  }
};
// Rows at work and those to fetch, in registers: a vector store may alias whatever has an address.
template <class In, int NS>
struct RowPointers {
  const In* row[NS];
  const In* ahead[NS];
};
template <class T, bool is_short, class In>
TIM_INLINE Vec<T> load_at(const In* row, int64_t at, int64_t dim) {
  if constexpr (is_short) return load_row_tail<T>(row, dim);
  return load_row<T>(row + at);
}
template <class T>
TIM_INLINE void fetch(const T* p) {
  __builtin_prefetch(p, 0, 3);
}
// Once for each cache line of the vectors that a loop reads.
template <class T, class In>
TIM_INLINE bool starts_line(int64_t v) {
  constexpr int64_t bytes = kWidth<T> * int64_t(sizeof(In));
  return bytes >= kCacheLine || v % (kCacheLine / bytes) == 0;
}

// f(const In*) with the rows of a task in their own type.
template <class T, class Step, class F>
TIM_INLINE void with_task_rows(const Step& s, int64_t task, F&& f) {
  const int64_t at = task * s.layout.feature_task;
  if constexpr (sizeof(T) == 8) {
    f(static_cast<const double*>(s.features) + at);
  } else {
    if (s.layout.dtype == Dtype::f32) return f(static_cast<const float*>(s.features) + at);
    if (s.layout.dtype == Dtype::f16) return f(static_cast<const Half*>(s.features) + at);
    f(static_cast<const BFloat16*>(s.features) + at);
  }
}

// Class of a support sample (K: beyond the classes), kQuery or kPadding for n samples, kPadding up to a whole vector.
template <class T, class Step>
void take_labels(const Step& s, int64_t task, int64_t i0, int64_t n, typename Simd<T>::Int* out) {
  using Int = typename Simd<T>::Int;
  const int64_t* labels = s.labels + task * s.layout.label_task + i0 * s.layout.label;
  const int64_t K = s.shape.classes;
  for (int64_t i = 0; i < n; ++i) {
    const int64_t label = labels[i * s.layout.label];
    out[i] = Int(label >= K ? K : label >= kQuery ? label : kPadding);
  }
  for (int64_t i = n; i % kWidth<T> != 0; ++i) out[i] = Int(kPadding);
}
template <class T>
TIM_INLINE IVec<T> labels_at(const typename Simd<T>::Int* labels, int64_t i) {
  return *reinterpret_cast<const IVec<T>*>(labels + i);
}

// f(first row, pointers to up to Rows rows) for n rows; `next` is the row that is read after them.
template <int Rows, class In, class F>
TIM_INLINE void for_rows(const In* rows, int64_t row, int64_t n, const In* next, F f) {
  for (int64_t i = 0; i < n; i += Rows)
    with_constant<Rows>(int(n - i < Rows ? n - i : Rows), [&](auto ns) {
      RowPointers<In, decltype(ns)::value> x;
      for (int64_t s = 0; s < decltype(ns)::value; ++s) {
        const int64_t j = i + s + kRowsAhead;
        x.row[s] = rows + (i + s) * row;
        x.ahead[s] = j < n ? rows + j * row : next + (j - n) * row;
      }
      f(i, x);
    });
}

// A task whose sums take more than one piece of kStepRows samples is cut into up to kStepChunks runs of pieces, which threads
// share: by its shape alone, and they are added in order, so that threads change no bit.
constexpr int64_t kStepChunks = 16;
inline int64_t step_pieces(int64_t samples) { return (samples + kStepRows - 1) / kStepRows; }
inline int64_t step_chunks(const StepShape& shape) {  // of no fewer samples than classes: sums are [K, d]
  const int64_t least = shape.classes > kStepRows ? shape.classes : kStepRows, most = shape.samples / least;
  const int64_t some = most < kStepChunks ? most : kStepChunks;
  return some < 1 ? 1 : some;
}
// f(chunk, first sample, count) for every piece, those of a chunk in order.
template <class F>
TIM_INLINE void for_step_pieces(const StepShape& shape, const Team& team, F f) {
  const int64_t samples = shape.samples, pieces = step_pieces(samples), chunks = step_chunks(shape);
  run(team, chunks, [&](int64_t chunk) {
    for (int64_t piece = pieces * chunk / chunks; piece < pieces * (chunk + 1) / chunks; ++piece) {
      const int64_t first = piece * kStepRows;
      f(chunk, first, samples - first < kStepRows ? samples - first : kStepRows);
    }
  });
}

inline int64_t step_workspace(const StepShape& shape) {
  const int64_t K = shape.classes, chunks = step_chunks(shape);
  const int64_t one = K * (shape.dim + 64) + 2 * K * kStepRows + kStepRows + 6 * K + 64;
  return (chunks * one + 3 * K + 64) * 8;
}

}  // namespace TIM_ISA
}  // namespace tim_ext
