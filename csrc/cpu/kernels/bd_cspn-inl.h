// BD-CSPN on a task: prototypes rectified by the queries, and the probabilities by cosine.
#pragma once

#include "cpu/kernels/prelude.h"
#include "cpu/kernels/task_samples-inl.h"

namespace tim_ext {
namespace TIM_ISA {

// w_k = sum_i a_ki z'_i,  a_ki = softmax of scale cos(w_k(0), z'_i) over the samples i of class k. z'_i is z_i on S and
// z_i + shift on Q, shift = mean_S z - mean_Q z; it is not formed: what is needed of it follows from z and the shift.
template <class T>
class Rectification {
 public:
  static constexpr int W = kWidth<T>;

  Rectification(TaskSamples<T>& samples, double scale, Arena& arena)
      : s_(samples), N(s_.N), K(s_.K), d(s_.d), scale_(T(scale)) {
    lanes_ = round_up(N > 0 ? N : 1, W);
    a_ = arena.take<T>((K + 1) * lanes_);
    dots_ = arena.take<T>((K + 1) * lanes_);
    means_ = arena.take<T>((K + 1) * d);
    for (T** array : {&exponent_, &share_}) *array = arena.take<T>(lanes_);
    for (T** array : {&along_, &length_, &largest_}) *array = arena.take<T>(K);
    own_ = arena.take<int64_t>(N);
  }

  // w [K, d]; without queries, the prototypes.
  void run(T* w) {
    const int64_t queries = means();
    const T* const shift = means_ + K * d;
    if (queries == 0) {
      for (int64_t j = 0; j < K * d; ++j) w[j] = means_[j];
      return;
    }
    assign(shift);
    weigh();
    s_.sum(a_, lanes_, K, w);
    for (int64_t k = 0; k < K; ++k) {
      T on_queries = 0;
      for (int64_t i = 0; i < N; ++i)
        if (s_.labels[i] == kQuery) on_queries += a_[k * lanes_ + i];
      for (int64_t c = 0; c < d; ++c) w[k * d + c] += on_queries * shift[c];
    }
  }

 private:
  // The prototypes and the shift; the number of queries.
  int64_t means() {
    int64_t support = 0, queries = 0;
    for (int64_t i = 0; i < N; ++i) {
      support += s_.labels[i] >= 0;
      queries += s_.labels[i] == kQuery;
    }
    for (int64_t k = 0; k < K; ++k) {
      int64_t shots = 0;
      for (int64_t i = 0; i < N; ++i) shots += s_.labels[i] == k;
      for (int64_t i = 0; i < N; ++i) a_[k * lanes_ + i] = s_.labels[i] == k ? T(1 / double(shots)) : T(0);
    }
    for (int64_t i = 0; i < N; ++i)
      a_[K * lanes_ + i] = s_.labels[i] >= 0        ? T(1 / double(support))
                           : s_.labels[i] == kQuery ? T(-1 / double(queries))
                                                    : T(0);
    s_.sum(a_, lanes_, K + 1, means_);
    return queries;
  }

  // The class of every sample, of a query that of its largest cosine, and into exponent_ the cosine with it.
  void assign(const T* shift) {
    s_.products(means_, K + 1, dots_, lanes_);
    const T square = dot(shift, shift, d);
    for (int64_t k = 0; k < K; ++k) {
      along_[k] = dot(means_ + k * d, shift, d);
      length_[k] = __builtin_sqrt(squared_norm<T>(means_ + k * d, d));
    }
    for (int64_t i = 0; i < N; ++i) {
      own_[i] = s_.labels[i] >= 0 && s_.labels[i] < K ? s_.labels[i] : -1;
      exponent_[i] = T(0);
      const bool query = s_.labels[i] == kQuery;
      if (own_[i] < 0 && !query) continue;
      T own_square = s_.square[i];
      if (query) own_square += 2 * dots_[K * lanes_ + i] + square;
      const T length = __builtin_sqrt(own_square > 0 ? own_square : own_square * 0);  // NaN stays
      auto cosine = [&](int64_t k) {
        return divide_by_length(dots_[k * lanes_ + i] + (query ? along_[k] : T(0)), length_[k] * length);
      };
      if (query) {
        own_[i] = 0;
        exponent_[i] = cosine(0);
        for (int64_t k = 1; k < K; ++k) {
          const T value = cosine(k);
          if (value > exponent_[i]) own_[i] = k;
          if (!(value <= exponent_[i])) exponent_[i] = value;  // NaN wins
        }
      } else {
        exponent_[i] = cosine(own_[i]);
      }
    }
  }

  // a_ki from the classes and cosines.
  void weigh() {
    for (int64_t k = 0; k < K; ++k) {
      largest_[k] = -std::numeric_limits<T>::max();
      length_[k] = T(0);  // becomes the sum of the exponentials
    }
    for (int64_t i = 0; i < N; ++i)
      if (own_[i] >= 0 && exponent_[i] > largest_[own_[i]]) largest_[own_[i]] = exponent_[i];
    for (int64_t i = 0; i < lanes_; ++i)
      exponent_[i] = i < N && own_[i] >= 0 ? (exponent_[i] - largest_[own_[i]]) * scale_ * T(kLog2e) : T(0);
    for (int64_t i = 0; i < lanes_; i += W) store(share_ + i, vexp2<T>(load(exponent_ + i)));
    for (int64_t i = 0; i < N; ++i)
      if (own_[i] >= 0) length_[own_[i]] += share_[i];
    for (int64_t k = 0; k < K; ++k)
      for (int64_t i = 0; i < N; ++i) a_[k * lanes_ + i] = own_[i] == k ? share_[i] / length_[k] : T(0);
  }

  TaskSamples<T>& s_;
  const int64_t N, K, d;
  const T scale_;
  int64_t lanes_;
  T *a_, *dots_, *means_, *exponent_, *share_, *along_, *length_, *largest_;
  int64_t* own_;
};

template <class T>
class BdCspnTask {
 public:
  static constexpr int W = kWidth<T>;
  BdCspnTask(const BdCspn<T>& s, Arena& arena)
      : s_(s),
        samples_(s.gather, s.gather.shape.classes + 1, arena),
        rectification_(samples_, s.scale, arena) {
    lanes_ = round_up(samples_.N > 0 ? samples_.N : 1, W);
    cosine_ = arena.take<T>(samples_.K * lanes_);
    length_ = arena.take<T>(samples_.K);
  }

  // p_ik = softmax_k(temperature cos(w_k, z_i))
  void run(int64_t task) {
    const int64_t N = samples_.N, K = samples_.K, d = samples_.d;
    T* const w = s_.out.weights + task * K * d;
    if (!samples_.take(task, s_.out)) return;
    rectification_.run(w);
    samples_.products(w, K, cosine_, lanes_);
    for (int64_t k = 0; k < K; ++k) length_[k] = squared_norm<T>(w + k * d, d);
    for (int64_t i = 0; i < lanes_; ++i) {
      const T square = i < N ? samples_.square[i] : T(0);
      for (int64_t k = 0; k < K; ++k) {
        T& cosine = cosine_[k * lanes_ + i];
        if (i >= N)
          cosine = T(0);
        else if (ordinary(square) && ordinary(length_[k]))
          cosine /= __builtin_sqrt(square) * __builtin_sqrt(length_[k]);
        else
          cosine = cosine_of(w + k * d, samples_.rows[i], d);
      }
    }
    const T scale = T(s_.temperature * kLog2e);
    for (int64_t i = 0; i < lanes_; i += W) {
      Vec<T> top = splat(-std::numeric_limits<T>::max()), total = Vec<T>{};
      for (int64_t k = 0; k < K; ++k) top = vmax(top, load(cosine_ + k * lanes_ + i));
      for (int64_t k = 0; k < K; ++k) {
        const Vec<T> e = vexp2<T>((load(cosine_ + k * lanes_ + i) - top) * scale);
        store(cosine_ + k * lanes_ + i, e);
        total += e;
      }
      const Vec<T> inverse = T(1) / total;
      for (int64_t k = 0; k < K; ++k)
        store(cosine_ + k * lanes_ + i, load(cosine_ + k * lanes_ + i) * inverse);
    }
    for (int64_t k = 0; k < K; ++k)
      for (int64_t i = 0; i < N; ++i) s_.out.probs[(task * K + k) * N + i] = cosine_[k * lanes_ + i];
  }

 private:
  static bool ordinary(T square) { return square > Range<T>::tiny && square < Range<T>::huge; }

  const BdCspn<T>& s_;
  TaskSamples<T> samples_;
  Rectification<T> rectification_;
  int64_t lanes_;
  T *cosine_, *length_;
};

}  // namespace TIM_ISA
}  // namespace tim_ext
