// The samples of a task, gathered and transformed: what tim_ext/transforms.py does, while they are in the cache.
#pragma once

#include "cpu/kernels/prelude.h"
#include "cpu/kernels/rows-inl.h"
#include "cpu/kernels/workspace-inl.h"

namespace tim_ext {
namespace TIM_ISA {

// z = f(z) for the numbers of a row
template <class T, class F>
TIM_INLINE void map_row(T* z, int64_t dim, F f) {
  int64_t c = 0;
  for (; c + kWidth<T> <= dim; c += kWidth<T>) store(z + c, f(load(z + c), c));
  if (c == dim) return;
  const Vec<T> tail = f(load_row_tail<T>(z + c, dim - c), c);
  for (int64_t j = 0; c + j < dim; ++j) z[c + j] = tail[j];
}

// sign(x) sqrt(|x|)
template <class T>
TIM_INLINE Vec<T> signed_root(Vec<T> x) {
  constexpr typename Simd<T>::Int sign = std::numeric_limits<typename Simd<T>::Int>::min();
  const IVec<T> bits = (IVec<T>)x;
  return (Vec<T>)((IVec<T>)vsqrt<T>((Vec<T>)(bits & ~sign)) | (bits & sign));
}

// To unit length, however long the row is; a zero row stays zero.
template <class T>
void unit_row(T* z, int64_t dim) {
  T square = squared_norm<T>(z, dim);
  if (!(square > Range<T>::tiny && square < Range<T>::huge)) {
    T largest = 0;
    for (int64_t c = 0; c < dim; ++c) {
      const T a = z[c] < 0 ? -z[c] : z[c];
      largest = a > largest ? a : largest;
    }
    if (largest == 0) return;
    for (int64_t c = 0; c < dim; ++c) z[c] /= largest;
    square = squared_norm<T>(z, dim);
  }
  const T scale = T(1) / __builtin_sqrt(square);
  map_row(z, dim, [&](Vec<T> x, int64_t) TIM_LAMBDA_INLINE { return x * scale; });
}

template <class T>
class GatherTask {
 public:
  static constexpr int W = kWidth<T>;
  GatherTask(const GatherTasks<T>& s, Arena& arena) : s_(s) {
    pitch_ = round_up(d, W);
    for (T** row : {&sum_, &low_, &span_, &other_}) *row = arena.take<T>(pitch_);
    total_ = arena.take<double>(d);
  }

  void run(int64_t task) { run(task, s_.out + task * N * d); }
  void run(int64_t task, T* z) {  // z [N, d]
    z_ = z;
    labels_ = s_.labels + task * N;
    int64_t first = 0;  // step that looks at the task
    while (first < s_.count && !of_a_task(s_.changes[first])) ++first;
    const int64_t* const rows = s_.rows + task * N;
    if constexpr (sizeof(T) == 8)
      gather(static_cast<const double*>(s_.features), rows, first);
    else if (s_.dtype == Dtype::f32)
      gather(static_cast<const float*>(s_.features), rows, first);
    else if (s_.dtype == Dtype::f16)
      gather(static_cast<const Half*>(s_.features), rows, first);
    else
      gather(static_cast<const BFloat16*>(s_.features), rows, first);
    s_.finite[task] = nothing_ == T(0);  // not so if it is NaN
    for (int64_t j = first; j < s_.count; ++j) change_task(s_.changes[j]);
  }

 private:
  bool used(int64_t i) const { return labels_[i] != kPadding; }
  bool is_query(int64_t i) const { return labels_[i] == kQuery; }

  // The samples, and what is done to them one by one while they are near.
  template <class In>
  void gather(const In* features, const int64_t* rows, int64_t changes) {
    Vec<T> nothing = Vec<T>{};
    for (int64_t i = 0; i < N; ++i) {
      T* const z = z_ + i * d;
      if (!used(i)) {
        for (int64_t c = 0; c < d; ++c) z[c] = T(0);
        continue;
      }
      const In* const x = features + rows[i] * d;
      const In* const ahead = features + (i + 2 < N && used(i + 2) ? rows[i + 2] : rows[i]) * d;
      int64_t c = 0;
      for (; c + W <= d; c += W) {
        __builtin_prefetch(ahead + c);
        const Vec<T> v = load_row<T>(x + c);
        nothing += v - v;
        store(z + c, v);
      }
      if (c < d) {
        const Vec<T> tail = load_row_tail<T>(x + c, d - c);
        nothing += tail - tail;
        for (int64_t j = 0; c + j < d; ++j) z[c + j] = tail[j];
      }
      for (int64_t j = 0; j < changes; ++j) change_row(s_.changes[j], z);
    }
    nothing_ = reduce_add<T>(nothing);
  }
  void change_row(Change change, T* z) {
    if (change == Change::l2) return unit_row(z, d);
    if (change == Change::power)
      return map_row(z, d, [&](Vec<T> x, int64_t) TIM_LAMBDA_INLINE { return signed_root<T>(x); });
    subtract(z, s_.base_mean);
  }
  void subtract(T* z, const T* row) {
    map_row(z, d, [&](Vec<T> x, int64_t c) TIM_LAMBDA_INLINE {
      return x - (c + W <= d ? load(row + c) : load_row_tail<T>(row + c, d - c));
    });
  }
  template <class F>
  void each(F f) {
    for (int64_t i = 0; i < N; ++i)
      if (used(i)) f(i, z_ + i * d);
  }

  void change_task(Change change) {
    if (!of_a_task(change)) return each([&](int64_t, T* z) { change_row(change, z); });
    if (change == Change::min_max) return min_max();
    if (change == Change::joint_center) return centre([&](int64_t i) { return used(i); });
    centre([&](int64_t i) { return labels_[i] >= 0; });
    centre([&](int64_t i) { return is_query(i); });
  }

  // The samples of a set minus their mean; sums of 256 rows go into `total_`.
  template <class In>
  void centre(In in_set) {
    int64_t count = 0;
    for (int64_t c = 0; c < d; ++c) total_[c] = 0;
    for (int64_t c = 0; c < pitch_; ++c) sum_[c] = T(0);
    auto add_up = [&] {
      for (int64_t c = 0; c < d; ++c) {
        total_[c] += double(sum_[c]);
        sum_[c] = T(0);
      }
    };
    for (int64_t i = 0; i < N; ++i) {
      if (!in_set(i)) continue;
      if (++count % 256 == 0) add_up();
      const T* const z = z_ + i * d;
      map_row(sum_, d, [&](Vec<T> x, int64_t c) TIM_LAMBDA_INLINE {
        return x + (c + W <= d ? load(z + c) : load_row_tail<T>(z + c, d - c));
      });
    }
    if (count == 0) return;
    add_up();
    for (int64_t c = 0; c < d; ++c) sum_[c] = T(total_[c] / double(count));
    for (int64_t i = 0; i < N; ++i)
      if (in_set(i)) subtract(z_ + i * d, sum_);
  }

  // Of each number among the samples of a set: the least, and the largest minus it.
  template <class In>
  void range(In in_set, T* low, T* span) {
    bool first = true;
    for (int64_t i = 0; i < N; ++i) {
      if (!in_set(i)) continue;
      const T* const z = z_ + i * d;
      for (int64_t c = 0; c < d; ++c) {
        low[c] = first || z[c] < low[c] ? z[c] : low[c];
        span[c] = first || z[c] > span[c] ? z[c] : span[c];
      }
      first = false;
    }
    for (int64_t c = 0; c < d; ++c) span[c] = first ? T(0) : span[c] - low[c];
  }
  void min_max() {
    bool queries = false;
    for (int64_t i = 0; i < N; ++i) queries = queries || is_query(i);
    range([&](int64_t i) { return queries ? is_query(i) : used(i); }, low_, span_);
    range([&](int64_t i) { return used(i); }, other_, sum_);
    for (int64_t c = 0; c < d; ++c) {
      span_[c] = span_[c] > 0 ? span_[c] : sum_[c];
      span_[c] = span_[c] > 0 ? span_[c] : T(1);
    }
    each([&](int64_t, T* z) {
      for (int64_t c = 0; c < d; ++c) z[c] = (z[c] - low_[c]) / span_[c];
    });
  }

  const GatherTasks<T>& s_;
  const int64_t N = s_.shape.samples, d = s_.shape.dim;
  int64_t pitch_;
  T *sum_, *low_, *span_, *other_;
  double* total_;
  T* z_ = nullptr;
  T nothing_ = T(0);  // sum of x - x over the features: NaN if one of them is not finite
  const int64_t* labels_ = nullptr;
};

}  // namespace TIM_ISA
}  // namespace tim_ext
