// q_update of a task: the assignments from log p.
#pragma once

#include "cpu/kernels/prelude.h"
#include "cpu/kernels/sample_major-inl.h"
#include "cpu/kernels/step_rows-inl.h"

namespace tim_ext {
namespace TIM_ISA {

// log2 r_ik between these bounds: then r, its sums and r_ik g_k <= max(1, sum_i r_ik) stay in the range of T, and the largest
// r_ik g_k of a row does not vanish.
template <class T>
constexpr T kLeastPlain = sizeof(T) == 4 ? T(-100) : T(-900);
constexpr int kMostPlain = 1;

template <class T>
struct QChunk {
  T* block;  // [K][kStepRows]
  typename Simd<T>::Int* labels;
  double* sum;  // [K]
  T* largest;   // [K]
  T lowest;
};

// q_ik = r_ik g_k / sum_k of that on queries, r = p^power, g_k = (sum over Q of r_ik)^-e; where r may leave the range,
// q_ik = softmax_k(log r_ik - e log sum over Q of r_ik). Logarithms are to base 2.
template <class T>
class QStep {
 public:
  static constexpr int W = kWidth<T>;
  QStep(const Laid<QUpdate<T>>& s, int64_t task, Arena& arena) : s_(s), task_(task) {
    total_ = arena.take<double>(K);
    factor_ = arena.take<T>(round_up(K, W));
    largest_ = arena.take<T>(K);
    for (int64_t c = 0; c < step_chunks(s_.shape); ++c) {
      chunks_[c].block = arena.take<T>(K * kStepRows);
      chunks_[c].labels = arena.take<typename Simd<T>::Int>(kStepRows);
      chunks_[c].sum = arena.take<double>(K);
      chunks_[c].largest = arena.take<T>(K);
    }
  }

  void run(const Team& team) {
    const bool one = step_pieces(s_.shape.samples) == 1;  // then it stays in the block
    sum_up<false>(team, !one);
    T highest = -std::numeric_limits<T>::max(), lowest = T(0);
    for (int64_t k = 0; k < K; ++k) highest = largest_[k] > highest ? largest_[k] : highest;
    for (int64_t c = 0; c < step_chunks(s_.shape); ++c)
      lowest = chunks_[c].lowest < lowest ? chunks_[c].lowest : lowest;
    if (highest <= T(kMostPlain) && lowest >= kLeastPlain<T>) {
      plain_factors();
      return apply(team, [&](QChunk<T>& c, int64_t i0, int64_t n) {
        if (!one) to_class_major(s_.assignments + at(i0), n, K, c.block, kStepRows);
        plain_rows(c, n);
      });
    }
    sum_up<true>(team, false);
    for (int64_t k = 0; k < K; ++k) factor_[k] = offset(k, largest_[k]);
    apply(team, [&](QChunk<T>& c, int64_t i0, int64_t n) {
      to_class_major(s_.log_probs + at(i0), n, K, c.block, kStepRows);
      exact_rows(c, n);
    });
  }

 private:
  int64_t at(int64_t i0) const { return (task_ * s_.shape.samples + i0) * K; }
  T offset(int64_t k, T largest) const {
    return q_offset(s_.c, T(double(largest) + __builtin_log2(total_[k])), T(0));
  }

  // g_k = 2^-offset_k: `marginal_factors` of sums alone. Without a query any factor will do.
  void plain_factors() {
    for (int64_t k = 0; k < K; k += W) store(factor_ + k, splat<T>(1));
    for (int64_t k = 0; k < K; ++k)
      if (total_[k] > 0) factor_[k] = T(total_[k]);
    for (int64_t k = 0; k < K; k += W)
      store(factor_ + k, vexp2<T>(vlog2<T>(load(factor_ + k)) * -s_.c.marginal_power));
  }

  // r in the block, or (shifted) r 2^-largest_k, and its sums over the queries; not shifted: the largest log r, too.
  template <bool shifted>
  void sum_up(const Team& team, bool keep_all) {
    for (int64_t c = 0; c < step_chunks(s_.shape); ++c) {
      chunks_[c].lowest = T(0);
      for (int64_t k = 0; k < K; ++k) {
        chunks_[c].sum[k] = 0;
        chunks_[c].largest[k] = -std::numeric_limits<T>::max();
      }
    }
    for_step_pieces(s_.shape, team, [&](int64_t number, int64_t i0, int64_t n) {
      QChunk<T>& c = chunks_[number];
      take_labels<T>(s_, task_, i0, n, c.labels);
      to_class_major(s_.log_probs + at(i0), n, K, c.block, kStepRows);
      sum_rows<shifted>(c, n);
      if (keep_all) to_sample_major(c.block, kStepRows, n, K, s_.assignments + at(i0));
    });
    for (int64_t k = 0; k < K; ++k) {
      total_[k] = 0;
      if (!shifted) largest_[k] = -std::numeric_limits<T>::max();
      for (int64_t c = 0; c < step_chunks(s_.shape); ++c) {
        total_[k] += chunks_[c].sum[k];
        if (!shifted && chunks_[c].largest[k] > largest_[k]) largest_[k] = chunks_[c].largest[k];
      }
    }
  }
  template <bool shifted>
  void sum_rows(QChunk<T>& c, int64_t n) {
    const T scale = s_.c.power * T(kLog2e);
    Vec<T> lowest = splat(c.lowest);
    for (int64_t k = 0; k < K; ++k) {
      Vec<T> sum = Vec<T>{}, largest = splat(-std::numeric_limits<T>::max());
      for (int64_t i = 0; i < n; i += W) {
        T* const place = c.block + k * kStepRows + i;
        const IVec<T> is_query = labels_at<T>(c.labels, i) == typename Simd<T>::Int(kQuery);
        const Vec<T> log_r = load(place) * scale;
        if constexpr (!shifted) {
          largest = vmax(largest, is_query ? log_r : largest);
          lowest = vmin(lowest, keep<T>(is_query, log_r));
        }
        const Vec<T> r = keep<T>(is_query, vexp2<T>(shifted ? log_r - largest_[k] : log_r));
        store(place, r);
        sum += r;
      }
      c.sum[k] += double(reduce_add<T>(sum));
      if constexpr (!shifted) c.largest[k] = max_of(c.largest[k], reduce_max<T>(largest));
    }
    if constexpr (!shifted) c.lowest = -reduce_max<T>(-lowest);
  }
  static T max_of(T a, T b) { return a > b ? a : b; }

  template <class F>
  void apply(const Team& team, F f) {
    const bool again = step_pieces(s_.shape.samples) > 1;
    for_step_pieces(s_.shape, team, [&](int64_t number, int64_t i0, int64_t n) {
      QChunk<T>& c = chunks_[number];
      if (again) take_labels<T>(s_, task_, i0, n, c.labels);
      f(c, i0, n);
      to_sample_major(c.block, kStepRows, n, K, s_.assignments + at(i0));
    });
  }
  // q on queries, y elsewhere, from the unnormalised q in the block and their sums.
  void finish_rows(QChunk<T>& c, int64_t i, Vec<T> total) {
    const IVec<T> labels = labels_at<T>(c.labels, i);
    const Vec<T> inverse = keep<T>(labels == typename Simd<T>::Int(kQuery), T(1) / total);
    for (int64_t k = 0; k < K; ++k) {
      T* const place = c.block + k * kStepRows + i;
      store(place, keep<T>(labels < 0, load(place) * inverse) +
                       keep<T>(labels == typename Simd<T>::Int(k), splat<T>(1)));
    }
  }
  void plain_rows(QChunk<T>& c, int64_t n) {
    for (int64_t i = 0; i < n; i += W) {
      Vec<T> total = Vec<T>{};
      for (int64_t k = 0; k < K; ++k) {
        T* const place = c.block + k * kStepRows + i;
        const Vec<T> q = load(place) * factor_[k];
        store(place, q);
        total += q;
      }
      finish_rows(c, i, total);
    }
  }
  void exact_rows(QChunk<T>& c, int64_t n) {
    const T scale = s_.c.power * T(kLog2e);
    for (int64_t i = 0; i < n; i += W) {
      Vec<T> top = splat(-std::numeric_limits<T>::max()), total = Vec<T>{};
      for (int64_t k = 0; k < K; ++k) {
        T* const place = c.block + k * kStepRows + i;
        const Vec<T> log_q = load(place) * scale - factor_[k];
        store(place, log_q);
        top = vmax(top, log_q);
      }
      for (int64_t k = 0; k < K; ++k) {
        T* const place = c.block + k * kStepRows + i;
        const Vec<T> q = vexp2<T>(load(place) - top);
        store(place, q);
        total += q;
      }
      finish_rows(c, i, total);
    }
  }

  const Laid<QUpdate<T>>& s_;
  const int64_t task_, K = s_.shape.classes;
  double* total_;         // [K] sum over Q of r_ik
  T *factor_, *largest_;  // [K]
  QChunk<T> chunks_[kStepChunks];
};

template <class T>
void q_update_step(const Laid<QUpdate<T>>& s, int64_t task, const Team& team, void* work) {
  Arena arena(work);
  QStep<T>(s, task, arena).run(team);
}

}  // namespace TIM_ISA
}  // namespace tim_ext
