// Steps that a task chooses itself (StepControl): what both forms share. A form computes R = F(W) - W where the next W
// would be, asks how far to move, and moves W along R, or back along the residual before.
//
// Sums are taken over 32 elements by a warp, then over these parts in double: an order that depends on the shapes alone.
// Every block decides for itself, and all alike. What it decided, and where the arrays are, lies in its shared memory: the
// products have no registers to spare.
#pragma once

#include "cuda/core/forms.cuh"

namespace tim_ext {
namespace cuda {

// Memory is where the arrays of a form are.
template <class Memory>
struct ChosenSteps : Memory {
  StepControl control;
  StepMove move;
};

// R, the residual before it, and P with <A, R> = A . P minus what all classes share: one element of a class.
template <class T>
struct ResidualTerms {
  T now, before, product;
};
// The parts of <R, R> and <R_before, R>, from terms(k, i), k < columns, i < elements.
template <class T, class Terms>
__device__ __forceinline__ void inner_products(const Team& team, T* parts, int K, int columns,
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
      parts[2 * part] = own;
      parts[2 * part + 1] = mixed;
    }
  }
}
// The move that they ask for; by the first warp of every block.
template <class Memory>
__device__ __forceinline__ void choose_step(ChosenSteps<Memory>& s, int64_t elements) {
  if (int(threadIdx.x) >= kLanes) return;
  double own = 0, mixed = 0;
#pragma unroll 1
  for (int64_t part = lane_id(); part * kLanes < elements; part += kLanes) {
    own += double(s.parts[2 * part]);
    mixed += double(s.parts[2 * part + 1]);
  }
  own = warp_sum(own);
  mixed = warp_sum(mixed);
  if (lane_id() == 0) s.move = s.control.move(own, mixed);
}

// Dual form ----------------------------------------------------------------------------------------
//
// R has the place of C in DualState, and P = G R, the one product of an iteration, that of U in log_p. C and U = G C are
// here, and move along R and P. The first R is the first C, and is taken as it is.

template <class T>
struct DualStepsMemory {
  T* parts;    // [N / 32][2]
  T* arrays;   // C and R_before, grouped; U and P_before [K - 1][ld]
  T* of_last;  // C_K and R_before_K [ld]
  int64_t stride, last_stride;

  __device__ DualState<T> point() const { return {arrays, of_last}; }
  __device__ DualState<T> before() const { return {arrays + stride, of_last + last_stride}; }
  __device__ T* scores() const { return arrays + 2 * stride; }
  __device__ T* product_before() const { return arrays + 3 * stride; }
};
template <class T>
using DualSteps = ChosenSteps<DualStepsMemory<T>>;
template <class T>
__host__ __device__ DualStepsMemory<T> take_dual_steps(Arena& arena, int64_t N, int64_t ld, int K) {
  DualStepsMemory<T> m{};
  m.parts = arena.take<T>(2 * ((N + kLanes - 1) / kLanes));
  m.arrays = arena.take_equal<T>(4, grouped_size(K, ld), &m.stride);
  m.of_last = arena.take_equal<T>(2, ld, &m.last_stride);
  return m;
}

// C = U = 0. A barrier must follow.
template <class T>
__device__ void start_dual_steps(const Team& team, const TaskArrays<T>& a, const AdmWeights<T>& c,
                                 const DualStepsMemory<T>& m, DualSteps<T>* steps) {
  if (threadIdx.x == 0) *steps = {m, StepControl(c.iterations, a.n, c.decides_marginal), {1, false}};
  const DualState<T> point = m.point();
  for (int i = team.thread(); i < a.n; i += team.threads()) {
    point.last[i] = T(0);
    for (int k = 0; k < a.K - 1; ++k) point.difference[grouped(i, k, a.ld)] = m.scores()[k * a.ld + i] = T(0);
  }
}
// From R and P, which is in log_p, to the next C and its U in log_p.
template <class T>
__device__ __forceinline__ void dual_move(Team& team, const TaskArrays<T>& a, const DualState<T>& r,
                                          bool first, DualSteps<T>& s) {
  if (!first) {
    inner_products(team, s.parts, a.K, a.K - 1, a.n, [&](int k, int64_t i) {
      const int64_t at = grouped(i, k, a.ld);
      return ResidualTerms<T>{r.difference[at], s.before().difference[at], a.log_p(k)[i]};
    });
    TIM_SYNC(team);
    choose_step(s, a.n);
    __syncthreads();
  }
  const T factor = T(s.move.factor);
  const bool kept = !s.move.refused;
  const DualState<T> point = s.point(), before = s.before();
  for (int i = team.thread(); i < a.n; i += team.threads()) {
    if (kept) before.last[i] = r.last[i];
    point.last[i] += before.last[i] * factor;
#pragma unroll 1
    for (int k = 0; k < a.K - 1; ++k) {
      const int64_t at = grouped(i, k, a.ld), ki = k * a.ld + i;
      if (kept) {
        before.difference[at] = r.difference[at];
        s.product_before()[ki] = a.log_p()[ki];
      }
      point.difference[at] += before.difference[at] * factor;
      const T score = s.scores()[ki] + s.product_before()[ki] * factor;
      s.scores()[ki] = score;
      a.log_p()[ki] = score;
    }
  }
  TIM_SYNC(team);
}

// Primal form --------------------------------------------------------------------------------------

template <class T>
struct PrimalStepsMemory {
  T* parts;     // [pitch / 32][2]
  T* residual;  // R [K][pitch], and R_before
  int64_t stride;

  __device__ T* before() const { return residual + stride; }
};
template <class T>
using PrimalSteps = ChosenSteps<PrimalStepsMemory<T>>;
template <class T>
__host__ __device__ PrimalStepsMemory<T> take_primal_steps(Arena& arena, int K, int64_t pitch) {
  PrimalStepsMemory<T> m{};
  m.parts = arena.take<T>(2 * ((pitch + kLanes - 1) / kLanes));
  m.residual = arena.take_equal<T>(2, K * pitch, &m.stride);
  return m;
}

// No residual yet, and never one beyond dim. A barrier must follow.
template <class T>
__device__ void start_primal_steps(const Team& team, const TaskArrays<T>& a, const AdmWeights<T>& c,
                                   int64_t pitch, const PrimalStepsMemory<T>& m, PrimalSteps<T>* steps) {
  if (threadIdx.x == 0) *steps = {m, StepControl(c.iterations, a.n, c.decides_marginal), {1, false}};
  for (int64_t j = team.thread(); j < a.K * pitch; j += team.threads()) m.residual[j] = m.before()[j] = T(0);
}
// From R to the next W.
template <class T>
__device__ __forceinline__ void primal_move(Team& team, const TaskArrays<T>& a, const PrimalState<T>& w,
                                            PrimalSteps<T>& s) {
  inner_products(team, s.parts, a.K, a.K, w.pitch, [&](int k, int64_t column) {
    const int64_t at = k * w.pitch + column;
    return ResidualTerms<T>{s.residual[at], s.before()[at], s.residual[at]};
  });
  TIM_SYNC(team);
  choose_step(s, w.pitch);
  __syncthreads();
  const T factor = T(s.move.factor);
  const bool kept = !s.move.refused;
  for (int64_t j = team.thread(); j < a.K * w.pitch; j += team.threads()) {
    if (kept) s.before()[j] = s.residual[j];
    w.weights[j] += s.before()[j] * factor;
  }
  TIM_SYNC(team);
}

}  // namespace cuda
}  // namespace tim_ext
