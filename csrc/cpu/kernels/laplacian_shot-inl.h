// LaplacianShot on a task: assignments of its queries, smoothed over their neighbours. Arrays of queries alone, in the order of
// the samples: [K][lanes].
#pragma once

#include "cpu/kernels/bd_cspn-inl.h"
#include "cpu/kernels/prelude.h"
#include "cpu/kernels/task_samples-inl.h"

namespace tim_ext {
namespace TIM_ISA {

template <class T>
class LaplacianTask {
 public:
  static constexpr int W = kWidth<T>;
  static constexpr int64_t kWhole =
      1024;  // samples up to which all their products are kept, and half of them computed

  LaplacianTask(const LaplacianShot<T>& s, Arena& arena)
      : s_(s),
        samples_(s.gather, s.gather.shape.classes + 1, arena),
        rectification_(samples_, s.rectify ? s.scale : 0, arena) {
    lanes_ = round_up(N > 0 ? N : 1, W);
    most_ = s.neighbors < N ? s.neighbors : N;
    queries_ = arena.take<int64_t>(N);
    rows_ = arena.take<const T*>(N);
    square_ = arena.take<T>(N);
    gram_ = arena.take<T>((N <= kWhole ? N : kGramRows) * lanes_);
    dense_ = arena.take<T>(N * d);
    near_ = arena.take<int64_t>(N * most_);
    distance_ = arena.take<T>(most_);
    for (T** array : {&unary_, &q_, &log_q_, &pull_}) *array = arena.take<T>(K * lanes_);
  }

  void run(int64_t task) {
    T* const w = s_.out.weights + task * K * d;
    s_.ran[task] = 0;
    if (!samples_.take(task, s_.out)) return;
    labels_ = samples_.labels;
    if (s_.rectify)
      rectification_.run(w);
    else
      samples_.prototypes(unary_, lanes_, w);
    Q = 0;
    for (int64_t i = 0; i < N; ++i)
      if (labels_[i] == kQuery) queries_[Q++] = i;
    vectors_ = (Q + W - 1) / W;
    neighbours(samples_.z);
    distances(w);
    s_.ran[task] = smooth();
    T* const probs = s_.out.probs + task * K * N;
    for (int64_t k = 0; k < K; ++k) {
      for (int64_t i = 0; i < N; ++i) probs[k * N + i] = T(labels_[i] == k);
      for (int64_t i = 0; i < Q; ++i) probs[k * N + queries_[i]] = q_[k * lanes_ + i];
    }
  }

 private:
  // Of every query the nearest others, by ||z_j||^2 - 2 z_i . z_j; of equally near ones the first.
  void neighbours(const T* samples) {
    if (Q == 0) return;
    const T* z = samples + queries_[0] * d;
    if (queries_[Q - 1] - queries_[0] != Q - 1) {  // others in between
      for (int64_t i = 0; i < Q; ++i)
        for (int64_t c = 0; c < d; ++c) dense_[i * d + c] = samples[queries_[i] * d + c];
      z = dense_;
    }
    for (int64_t i = 0; i < Q; ++i) {
      rows_[i] = z + i * d;
      square_[i] = samples_.square[queries_[i]];
    }
    count_ = most_ < Q - 1 ? most_ : Q - 1;
    if (N <= kWhole) {
      gram_matrix(rows_, samples_.one, Q, z, d, gram_, lanes_);
      for (int64_t i = 0; i < Q; ++i) choose(i, gram_ + i * lanes_);
      return;
    }
    for (int64_t i0 = 0; i0 < Q; i0 += kGramRows) {
      const int64_t rows = Q - i0 < kGramRows ? Q - i0 : kGramRows;
      gram_rows(rows_, samples_.one, Q, z, d, i0, rows, gram_, lanes_);
      for (int64_t i = 0; i < rows; ++i) choose(i0 + i, gram_ + i * lanes_);
    }
  }
  // unary_ki = ||w_k - z_i||^2 on the queries; nothing pulls yet
  void distances(const T* w) {
    if (Q > 0) dot_rows(PlainRows<T>{rows_}, samples_.one, Q, w, d, K, d, unary_, lanes_);
    for (int64_t k = 0; k < K; ++k) {
      const T square = squared_norm<T>(w + k * d, d);
      for (int64_t i = 0; i < vectors_ * W; ++i) {
        T& unary = unary_[k * lanes_ + i];
        unary = i < Q ? square + square_[i] - 2 * unary : T(0);
        if (unary < 0) unary = T(0);
        pull_[k * lanes_ + i] = T(0);
      }
    }
  }
  void choose(int64_t i, const T* products) {
    if (count_ == 0) return;
    int64_t* const near = near_ + i * most_;
    int64_t found = 0;
    for (int64_t j = 0; j < Q; ++j) {
      const T away = square_[j] - 2 * products[j];
      if (j == i || (found == count_ && !(away < distance_[found - 1]))) continue;
      int64_t at = found < count_ ? found++ : found - 1;
      for (; at > 0 && away < distance_[at - 1]; --at) {
        distance_[at] = distance_[at - 1];
        near[at] = near[at - 1];
      }
      distance_[at] = away;
      near[at] = j;
    }
  }

  // The number of updates. Ends when the energy hardly changes:
  //   E = sum_ki q_ki (log q_ki + unary_ki - pull_ki),   pull_ki = lam sum of q_kj over the neighbours j of i
  int64_t smooth() {
    double energy = 0;
    assign();
    pull();
    int64_t t = 0;
    while (Q > 0 && t < s_.iterations) {
      s_.gather.pause();
      assign();
      pull();
      const double before = energy;
      energy = energy_now();
      if (t++ > 1 && !(__builtin_fabs(energy - before) > s_.tol * __builtin_fabs(before))) break;
    }
    return t;
  }
  // q = softmax_k(pull - unary) and its logarithm
  void assign() {
    for (int64_t i = 0; i < vectors_ * W; i += W) {
      Vec<T> top = splat(-std::numeric_limits<T>::max()), total = Vec<T>{};
      for (int64_t k = 0; k < K; ++k) {
        const int64_t at = k * lanes_ + i;
        const Vec<T> l = load(pull_ + at) - load(unary_ + at);
        store(log_q_ + at, l);
        top = vmax(top, l);
      }
      for (int64_t k = 0; k < K; ++k) {
        const int64_t at = k * lanes_ + i;
        const Vec<T> l = load(log_q_ + at) - top, e = vexp2<T>(l * T(kLog2e));
        store(log_q_ + at, l);
        store(q_ + at, e);
        total += e;
      }
      const Vec<T> inverse = T(1) / total, log_total = vlog2<T>(total) * T(kLn2);
      for (int64_t k = 0; k < K; ++k) {
        const int64_t at = k * lanes_ + i;
        store(q_ + at, load(q_ + at) * inverse);
        store(log_q_ + at, load(log_q_ + at) - log_total);
      }
    }
  }
  void pull() {
    const T lam = T(s_.lam);
    for (int64_t k = 0; k < K; ++k) {
      const T* const q = q_ + k * lanes_;
      for (int64_t i = 0; i < Q; ++i) {
        T sum = 0;
        for (int64_t n = 0; n < count_; ++n) sum += q[near_[i * most_ + n]];
        pull_[k * lanes_ + i] = lam * sum;
      }
    }
  }
  double energy_now() const {
    double sum = 0;
    for (int64_t k = 0; k < K; ++k)
      for (int64_t i = 0; i < Q; ++i) {
        const int64_t at = k * lanes_ + i;
        sum += double(q_[at] * (log_q_[at] + unary_[at] - pull_[at]));
      }
    return sum;
  }

  const LaplacianShot<T>& s_;
  TaskSamples<T> samples_;
  Rectification<T> rectification_;
  const int64_t N = samples_.N, K = samples_.K, d = samples_.d;
  int64_t Q = 0, lanes_, vectors_ = 0, most_, count_ = 0;
  int64_t *queries_, *near_;
  const T** rows_;
  T *square_, *gram_, *dense_, *distance_, *unary_, *q_, *log_q_, *pull_;
  const int64_t* labels_ = nullptr;
};

}  // namespace TIM_ISA
}  // namespace tim_ext
