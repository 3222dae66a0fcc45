// The steps of a task that chooses them itself (StepControl), in the dual form.
//
// R = F(C) - C takes the place of the next C. With P = G R, which is the one product of an iteration,
//   <R, R> = R . P,   <R_before, R> = R_before . P      minus what all classes share
// and C and U = G C move along R and P. Arrays are those of the form: differences to the last class [K - 1][lanes].
#pragma once

#include "cpu/kernels/prelude.h"
#include "cpu/kernels/vectors-inl.h"
#include "cpu/kernels/workspace-inl.h"

namespace tim_ext {
namespace TIM_ISA {

template <class T>
class DualSteps {
 public:
  static constexpr int W = kWidth<T>;
  struct Residual {
    T *difference, *last;  // R_k - R_K [K - 1][lanes], R_K [lanes]
    T* product;            // P [K - 1][lanes]
  };

  DualSteps(const Task& task, const AdmParams& params, int64_t lanes, int64_t panels, Arena& arena)
      : control_(params.iterations, task.samples(), params.decides_marginal),
        columns_(task.classes - 1),
        lanes_(lanes),
        panels_(panels) {
    for (Residual* r : {&now, &before_}) {
      r->difference = arena.take<T>(columns_ * lanes);
      r->last = arena.take<T>(lanes);
      r->product = arena.take<T>(columns_ * lanes);
    }
    scores = arena.take<T>(columns_ * lanes);
    parts_ = reinterpret_cast<Vec<T>*>(arena.take<char>(panels * 2 * int64_t(sizeof(Vec<T>))));
  }

  Residual now;  // of the point at hand
  T* scores;     // U_k = G (C_k - C_K)
  bool started() const { return started_; }

  // No residual yet.
  void start() {
    for (int64_t j = 0; j < columns_ * lanes_; ++j) before_.difference[j] = T(0);
    started_ = true;
  }

  // The parts of both inner products that are due to the vectors at .. at + width * W - 1, panel j of the samples.
  TIM_INLINE void inner_products(int64_t j, int64_t at, int64_t width) {
    Vec<T> own = Vec<T>{}, mixed = Vec<T>{};
    for (int64_t i = at; i < at + width * W; i += W) {
      Vec<T> sum = Vec<T>{}, sum_before = Vec<T>{}, sum_product = Vec<T>{};
      for (int64_t k = 0; k < columns_; ++k) {
        const Vec<T> r = load(now.difference + k * lanes_ + i), b = load(before_.difference + k * lanes_ + i),
                     p = load(now.product + k * lanes_ + i);
        own += r * p;
        mixed += b * p;
        sum += r;
        sum_before += b;
        sum_product += p;
      }
      const Vec<T> shared = sum_product * (T(1) / T(columns_ + 1));
      own -= sum * shared;
      mixed -= sum_before * shared;
    }
    parts_[2 * j] = own;
    parts_[2 * j + 1] = mixed;
  }

  // The move that they ask for; it is along the residual in `along` from here on.
  StepMove choose() {
    double own = 0, mixed = 0;
    for (int64_t j = 0; j < panels_; ++j) {
      own += double(reduce_add<T>(parts_[2 * j]));
      mixed += double(reduce_add<T>(parts_[2 * j + 1]));
    }
    const StepMove move = control_.move(own, mixed);
    if (!move.refused) exchange(now, before_);
    return move;
  }

  // C and U of one panel, after choose(); U to the logits too, and the terms of U_k . (C_k + C_K) to shift [K - 1].
  TIM_INLINE void move(T factor, int64_t at, int64_t width, T* difference, T* last, T* logits,
                       Vec<T>* shift) {
    for (int64_t i = at; i < at + width * W; i += W)
      store(last + i, load(last + i) + load(before_.last + i) * factor);
    for (int64_t k = 0; k < columns_; ++k) {
      Vec<T> sum = Vec<T>{};
      for (int64_t i = at; i < at + width * W; i += W) {
        const int64_t ki = k * lanes_ + i;
        const Vec<T> d = load(difference + ki) + load(before_.difference + ki) * factor;
        const Vec<T> u = load(scores + ki) + load(before_.product + ki) * factor;
        store(difference + ki, d);
        store(scores + ki, u);
        store(logits + ki, u);
        sum += u * (d + load(last + i) * T(2));
      }
      shift[k] = sum;
    }
  }

 private:
  StepControl control_;
  int64_t columns_, lanes_, panels_;
  bool started_ = false;
  Residual before_;  // along which C moves: `now` until choose() has kept its point
  Vec<T>* parts_;    // [panels][2]
};

}  // namespace TIM_ISA
}  // namespace tim_ext
