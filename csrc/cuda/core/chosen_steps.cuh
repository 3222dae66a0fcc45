// Steps that a task chooses itself (StepControl): what both forms share. A form computes R = F(W) - W where the next W
// would be, asks how far to move, and moves W along R, or back along the residual before.
//
// Sums are taken over 32 elements by a warp, then over these parts in double: an order that depends on the shapes alone.
// One thread decides, and leaves in memory what it decided.
#pragma once

#include "cuda/core/forms.cuh"

namespace tim_ext {
namespace cuda {

template <class T>
struct StepChoice {
  StepControl control;
  T factor;   // f
  int along;  // the residual of two that W moves along; the next one goes into the other
};
template <class T>
struct ChosenSteps {
  StepChoice<T>* choice;
  T* parts;  // [elements / 32][2]

  __device__ int along() const { return choice->along; }
  __device__ int next() const { return 1 - choice->along; }
};
template <class T>
__host__ __device__ ChosenSteps<T> take_choice(Arena& arena, int64_t elements) {
  StepChoice<T>* choice = arena.take<StepChoice<T>>(1);
  return {choice, arena.take<T>(2 * ((elements + kLanes - 1) / kLanes))};
}

// By one thread; a barrier must follow.
template <class T>
__device__ void start_choice(const ChosenSteps<T>& s, const AdmWeights<T>& c, int samples) {
  s.choice->control = StepControl(c.iterations, samples, c.decides_marginal);
  s.choice->along = 1;
}

// R, the residual before it, and P with <A, R> = A . P minus what all classes share: one element of a class.
template <class T>
struct ResidualTerms {
  T now, before, product;
};
// The parts of <R, R> and <R_before, R>, from terms(k, i), k < columns, i < elements.
template <class T, class Terms>
__device__ __forceinline__ void inner_products(const Team& team, const ChosenSteps<T>& s, int K, int columns,
                                               int64_t elements, Terms terms) {
  for (int64_t part = team.warp(); part * kLanes < elements; part += team.warps()) {
    const int64_t i = part * kLanes + lane_id();
    T own = 0, mixed = 0, sum = 0, sum_before = 0, sum_product = 0;
#pragma unroll 1
    for (int k = 0; k < columns && i < elements; ++k) {
      const ResidualTerms<T> r = terms(k, i);
      own += r.now * r.product;
      mixed += r.before * r.product;
      sum += r.now;
      sum_before += r.before;
      sum_product += r.product;
    }
    const T shared = sum_product / T(K);
    own = warp_sum(own - sum * shared);
    mixed = warp_sum(mixed - sum_before * shared);
    if (lane_id() == 0) {
      s.parts[2 * part] = own;
      s.parts[2 * part + 1] = mixed;
    }
  }
}
// The move that they ask for; by one warp.
template <class T>
__device__ __forceinline__ void choose_step(const ChosenSteps<T>& s, int64_t elements) {
  double own = 0, mixed = 0;
#pragma unroll 1
  for (int64_t part = lane_id(); part * kLanes < elements; part += kLanes) {
    own += double(s.parts[2 * part]);
    mixed += double(s.parts[2 * part + 1]);
  }
  own = warp_sum(own);
  mixed = warp_sum(mixed);
  if (lane_id() != 0) return;
  const StepMove move = s.choice->control.move(own, mixed);
  s.choice->factor = T(move.factor);
  if (!move.refused) s.choice->along = s.next();
}

// Dual form ----------------------------------------------------------------------------------------
//
// P = G R is the one product of an iteration; C and U = G C move along R and P.

template <class T>
struct DualSteps : ChosenSteps<T> {
  T* arrays;   // R of either residual, P of either, U: R grouped as C, the others [K - 1][ld]
  T* of_last;  // R_K [ld] of either
  int64_t stride, last_stride;

  __device__ DualState<T> residual(int which) const {
    return {arrays + which * stride, of_last + which * last_stride};
  }
  __device__ T* product(int which) const { return arrays + (2 + which) * stride; }
  __device__ T* scores() const { return arrays + 4 * stride; }
};
template <class T>
__host__ __device__ DualSteps<T> take_dual_steps(Arena& arena, int64_t N, int64_t ld, int K) {
  DualSteps<T> s{};
  static_cast<ChosenSteps<T>&>(s) = take_choice<T>(arena, N);
  s.arrays = arena.take_equal<T>(5, grouped_size(K, ld), &s.stride);
  s.of_last = arena.take_equal<T>(2, ld, &s.last_stride);
  return s;
}

// No residual yet; what lies beyond the classes weighs nothing. A barrier must follow.
template <class T>
__device__ void start_dual_steps(const Team& team, const TaskArrays<T>& a, const AdmWeights<T>& c,
                                 const DualSteps<T>& s) {
  if (team.thread() == 0) start_choice(s, c, a.n);
  for (int i = team.thread(); i < a.n; i += team.threads())
    for (int k = 0; k < round_up(a.K, 8); ++k)
      for (int which = 0; which < 2; ++which) s.residual(which).difference[grouped(i, k, a.ld)] = T(0);
}
// U of the first C, which is in log_p.
template <class T>
__device__ void keep_scores(const Team& team, const TaskArrays<T>& a, const DualSteps<T>& s) {
  for (int i = team.thread(); i < a.n; i += team.threads())
#pragma unroll 4
    for (int k = 0; k < a.K - 1; ++k) s.scores()[k * a.ld + i] = a.log_p(k)[i];
}
// From P of the next residual to the next C, and its U in log_p.
template <class T>
__device__ __forceinline__ void dual_move(Team& team, const TaskArrays<T>& a, const DualState<T>& c,
                                          const DualSteps<T>& s) {
  {
    const T* const now = s.residual(s.next()).difference;
    const T* const before = s.residual(s.along()).difference;
    const T* const product = s.product(s.next());
    inner_products(team, s, a.K, a.K - 1, a.n, [&](int k, int64_t i) {
      const int64_t at = grouped(i, k, a.ld);
      return ResidualTerms<T>{now[at], before[at], product[k * a.ld + i]};
    });
  }
  TIM_SYNC(team);
  if (team.warp() == 0) choose_step(s, a.n);
  TIM_SYNC(team);
  const T factor = s.choice->factor;
  const DualState<T> along = s.residual(s.along());
  const T* const product = s.product(s.along());
  for (int i = team.thread(); i < a.n; i += team.threads()) {
    c.last[i] += along.last[i] * factor;
#pragma unroll 4
    for (int k = 0; k < a.K - 1; ++k) {
      c.difference[grouped(i, k, a.ld)] += along.difference[grouped(i, k, a.ld)] * factor;
      const T score = s.scores()[k * a.ld + i] + product[k * a.ld + i] * factor;
      s.scores()[k * a.ld + i] = score;
      a.log_p(k)[i] = score;
    }
  }
  TIM_SYNC(team);
}

// Primal form --------------------------------------------------------------------------------------

template <class T>
struct PrimalSteps : ChosenSteps<T> {
  T* residuals;  // R [K][pitch] of either
  int64_t stride;

  __device__ T* residual(int which) const { return residuals + which * stride; }
};
template <class T>
__host__ __device__ PrimalSteps<T> take_primal_steps(Arena& arena, int K, int64_t pitch) {
  PrimalSteps<T> s{};
  static_cast<ChosenSteps<T>&>(s) = take_choice<T>(arena, pitch);
  s.residuals = arena.take_equal<T>(2, K * pitch, &s.stride);
  return s;
}

// No residual yet; beyond dim there is never one. A barrier must follow.
template <class T>
__device__ void start_primal_steps(const Team& team, const TaskArrays<T>& a, const AdmWeights<T>& c,
                                   int64_t pitch, const PrimalSteps<T>& s) {
  if (team.thread() == 0) start_choice(s, c, a.n);
  for (int64_t j = team.thread(); j < a.K * pitch; j += team.threads())
    s.residual(0)[j] = s.residual(1)[j] = T(0);
}
// From the next residual to the next W.
template <class T>
__device__ __forceinline__ void primal_move(Team& team, const TaskArrays<T>& a, const PrimalState<T>& w,
                                            const PrimalSteps<T>& s) {
  {
    const T *const now = s.residual(s.next()), *const before = s.residual(s.along());
    inner_products(team, s, a.K, a.K, w.pitch, [&](int k, int64_t column) {
      const int64_t at = k * w.pitch + column;
      return ResidualTerms<T>{now[at], before[at], now[at]};
    });
  }
  TIM_SYNC(team);
  if (team.warp() == 0) choose_step(s, w.pitch);
  TIM_SYNC(team);
  const T factor = s.choice->factor;
  const T* const along = s.residual(s.along());
  for (int64_t j = team.thread(); j < a.K * w.pitch; j += team.threads()) w.weights[j] += along[j] * factor;
  TIM_SYNC(team);
}

}  // namespace cuda
}  // namespace tim_ext
