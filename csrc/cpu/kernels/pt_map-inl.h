// PT-MAP on a task, in the Gram domain unless its samples are many: w_k = sum_j c_kj z_j, so that a move of the centres touches
// nothing of the length of the features. Arrays [K][lanes] of all samples; what is not a query has weight 0 in every sum of the plan.
#pragma once

#include "cpu/kernels/prelude.h"
#include "cpu/kernels/task_samples-inl.h"

namespace tim_ext {
namespace TIM_ISA {

constexpr int64_t kBalanceSteps = 100;  // at most

template <class T>
class PtMapTask {
 public:
  static constexpr int W = kWidth<T>;

  PtMapTask(const PtMap<T>& s, Arena& arena) : s_(s), samples_(s.gather, s.gather.shape.classes, arena) {
    lanes_ = round_up(N > 0 ? N : 1, W);
    gram_rows_ = arena.take<const T*>(N);
    by_gram_ = N <= 2 * d;  // then K N^2 multiplications for a move are fewer than 2 K N d
    gram_ = arena.take<T>(by_gram_ ? N * lanes_ : K * d);
    query_ = arena.take<T>(lanes_);
    for (T** array : {&a_, &p_, &c_}) *array = arena.take<T>(K * lanes_);
    for (double** array : {&g_, &total_, &shots_, &step_}) *array = arena.take<double>(K);
    hessian_ = arena.take<double>(K * K);
  }

  void run(int64_t task) {
    if (!samples_.take(task, s_.out)) return;
    labels_ = samples_.labels;
    prepare();
    if (queries_ > 0) {
      if (by_gram_) gram_matrix(samples_.rows, samples_.one, N, samples_.z, d, gram_, lanes_);
      for (int64_t i = 0; by_gram_ && i < N; ++i) gram_rows_[i] = gram_ + i * lanes_;
      for (int64_t t = 0;; ++t) {
        s_.gather.pause();
        nearness();
        balance();
        if (t == s_.iterations) break;
        move();
      }
    }
    for (int64_t k = 0; k < K; ++k)
      for (int64_t i = 0; i < N; ++i) {
        const bool query = labels_[i] == kQuery;
        s_.out.probs[(task * K + k) * N + i] = query ? p_[k * lanes_ + i] : T(labels_[i] == k);
      }
    samples_.sum(c_, lanes_, K, s_.out.weights + task * K * d);
  }

 private:
  void prepare() {
    queries_ = 0;
    for (int64_t i = 0; i < lanes_; ++i) {
      query_[i] = T(i < N && labels_[i] == kQuery);
      queries_ += query_[i] > 0;
    }
    for (int64_t k = 0; k < K; ++k) {
      g_[k] = shots_[k] = 0;
      for (int64_t i = 0; i < N; ++i) shots_[k] += labels_[i] == k;
      for (int64_t i = 0; i < lanes_; ++i)
        c_[k * lanes_ + i] = i < N && labels_[i] == k ? T(1 / shots_[k]) : T(0);
    }
  }

  // a_ki = -lam ||w_k - z_i||^2 / ln 2, but for what is the same for all k
  void nearness() {
    if (by_gram_) {
      accumulate_rows(PlainRows<T>{gram_rows_}, N, c_, lanes_, K, lanes_, false, a_, lanes_);
    } else {
      samples_.sum(c_, lanes_, K, gram_);  // the centres
      samples_.products(gram_, K, a_, lanes_);
      for (int64_t k = 0; k < K; ++k)
        for (int64_t i = N; i < lanes_; ++i) a_[k * lanes_ + i] = T(0);
    }
    const T scale = T(s_.lam * kLog2e);
    for (int64_t k = 0; k < K; ++k) {
      T* const a = a_ + k * lanes_;
      Vec<T> square = Vec<T>{};  // ||w_k||^2
      for (int64_t i = 0; i < lanes_; i += W) square += load(a + i) * load(c_ + k * lanes_ + i);
      const T length = reduce_add<T>(square);
      for (int64_t i = 0; i < lanes_; i += W) store(a + i, (load(a + i) * T(2) - length) * scale);
    }
  }

  // p = softmax_k(a + g) on the queries with g such that its sums over them are |Q| / K: see pt_map.py.
  void balance() {
    const double share = double(queries_) / double(K);
    for (int64_t round = 0;; ++round) {
      plan();
      double most = 0;
      for (int64_t k = 0; k < K; ++k) {
        step_[k] = share - total_[k];
        const double lack = step_[k] < 0 ? -step_[k] : step_[k];
        most = lack > most ? lack : most;
      }
      if (!(most > s_.tol * share) || round == kBalanceSteps) return;
      solve(share);
      double low = step_[0], high = step_[0];
      for (int64_t k = 1; k < K; ++k) {
        low = step_[k] < low ? step_[k] : low;
        high = step_[k] > high ? step_[k] : high;
      }
      const double range = high - low, shorten = range > 0 ? __builtin_log1p(range) / range : 1;
      for (int64_t k = 0; k < K; ++k) g_[k] += shorten * step_[k];
    }
  }
  void plan() {
    for (int64_t i = 0; i < lanes_; i += W) {
      Vec<T> top = splat(-std::numeric_limits<T>::max()), total = Vec<T>{};
      for (int64_t k = 0; k < K; ++k) {
        const Vec<T> l = load(a_ + k * lanes_ + i) + T(g_[k] * kLog2e);
        store(p_ + k * lanes_ + i, l);
        top = vmax(top, l);
      }
      for (int64_t k = 0; k < K; ++k) {
        const Vec<T> e = vexp2<T>(load(p_ + k * lanes_ + i) - top);
        store(p_ + k * lanes_ + i, e);
        total += e;
      }
      const Vec<T> inverse = load(query_ + i) / total;
      for (int64_t k = 0; k < K; ++k) store(p_ + k * lanes_ + i, load(p_ + k * lanes_ + i) * inverse);
    }
    for (int64_t k = 0; k < K; ++k) total_[k] = sum(p_ + k * lanes_);
  }
  double sum(const T* values) const {  // of blocks of 16 vectors in T, of those in double
    double all = 0;
    for (int64_t i0 = 0; i0 < lanes_; i0 += 16 * W) {
      Vec<T> part = Vec<T>{};
      for (int64_t i = i0; i < (i0 + 16 * W < lanes_ ? i0 + 16 * W : lanes_); i += W)
        part += load(values + i);
      all += double(reduce_add<T>(part));
    }
    return all;
  }

  // step <- H^-1 step,  H_kl = d total_k / d g_l = [k = l] total_k - sum_i p_ki p_li, made regular; by H = L D L^T
  void solve(double share) {
    for (int64_t k = 0; k < K; ++k)
      for (int64_t l = 0; l <= k; ++l) {
        Vec<T> both = Vec<T>{};
        for (int64_t i = 0; i < lanes_; i += W) both += load(p_ + k * lanes_ + i) * load(p_ + l * lanes_ + i);
        hessian_[k * K + l] =
            share / double(K) - double(reduce_add<T>(both)) + (k == l ? total_[k] + 1e-6 * share : 0);
      }
    for (int64_t k = 0; k < K; ++k) {
      double* const row = hessian_ + k * K;  // becomes L, with D on the diagonal
      for (int64_t l = 0; l < k; ++l) {
        const double* const other = hessian_ + l * K;
        for (int64_t j = 0; j < l; ++j) row[l] -= row[j] * other[j];
      }
      for (int64_t l = 0; l < k; ++l) {  // so far L D
        const double with_d = row[l];
        row[l] = with_d / hessian_[l * K + l];
        row[k] -= with_d * row[l];
      }
      for (int64_t l = 0; l < k; ++l) step_[k] -= row[l] * step_[l];
    }
    for (int64_t k = 0; k < K; ++k) step_[k] /= hessian_[k * K + k];
    for (int64_t k = K - 1; k >= 0; --k)
      for (int64_t l = k + 1; l < K; ++l) step_[k] -= hessian_[l * K + k] * step_[l];
  }

  // c_k <- c_k + step (p_k / sum_i p_ki - c_k), p being y on the support
  void move() {
    const T step = T(s_.step);
    for (int64_t k = 0; k < K; ++k) {
      const T inverse = T(1 / (total_[k] + shots_[k]));
      T* const c = c_ + k * lanes_;
      for (int64_t i = 0; i < N; ++i) {
        const T p = labels_[i] == k ? T(1) : p_[k * lanes_ + i];
        c[i] += step * (p * inverse - c[i]);
      }
    }
  }

  const PtMap<T>& s_;
  TaskSamples<T> samples_;
  const int64_t N = samples_.N, K = samples_.K, d = samples_.d;
  int64_t lanes_, queries_ = 0;
  bool by_gram_;
  const T** gram_rows_;
  T *gram_, *query_, *a_, *p_, *c_;
  double *g_, *total_, *shots_, *step_, *hessian_;
  const int64_t* labels_ = nullptr;
};

}  // namespace TIM_ISA
}  // namespace tim_ext
