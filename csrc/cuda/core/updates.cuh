// The updates of TIM that work on one sample or one class at a time, for all forms of the solvers.
//
// Arrays of a task are class-major, element (k, i) at [k * ld + i]. A thread takes a sample and loops over classes; or
// a warp takes a class, its lanes the samples, and sums over them. Logits and log p are in units of log 2.
#pragma once

#include "common/equations.h"
#include "cuda/core/products.cuh"

namespace tim_ext {
namespace cuda {

template <class T>
struct TaskArrays {
  int n, K;  // samples, classes
  int support;
  int64_t ld;
  const int* label;          // [n]
  const int* support_count;  // [K]
  const double* log_priors;  // [K] or null: see log_prior_of
  unsigned* moved;           // [2]: whether a probability moved by more than tol, for even and odd iterations
  T* of_samples;             // three arrays [K][ld]
  T* of_classes;             // six arrays [K]
  int64_t samples_stride, classes_stride;

  __device__ T* log_p(int64_t k = 0) const {
    return of_samples + k * ld;
  }  // z_i . (w_k - w_K); then log2 p_ik
  __device__ T* p(int64_t k = 0) const { return of_samples + samples_stride + k * ld; }
  __device__ T* target(int64_t k = 0) const {
    return of_samples + 2 * samples_stride + k * ld;
  }  // q on Q, y on S
  __device__ T* shift() const { return of_classes; }  // tau/2 (||w_k||^2 - ||w_K||^2)
  __device__ T* sum_p() const {
    return of_classes + classes_stride;
  }  // sum_i c_i p_ik, c_i = c_S on S, c_Q on Q
  __device__ T* query_p() const { return of_classes + 2 * classes_stride; }  // sum over Q of p_ik
  __device__ T* factor() const { return of_classes + 3 * classes_stride; }
  __device__ T* step() const { return of_classes + 4 * classes_stride; }
  __device__ T* stay() const { return of_classes + 5 * classes_stride; }

  __device__ bool is_query(int i) const { return label[i] == int(kQuery); }
  __device__ int queries() const { return n - support; }
  __device__ T c_query() const { return query_weight<T>(T(support), T(queries())); }
  __device__ T log_prior(int k) const { return log_priors == nullptr ? T(0) : T(log_priors[k]); }
};

// The parameters of a launch: the coefficients, and when to stop.
template <class T>
struct AdmWeights : AdmCoefficients<T> {
  T tol;
  int64_t iterations;
  bool decides_marginal;  // see decides_marginal_at
  T beta;
  bool smooths_by_shots;  // see smoothing_reach
  double smoothing;
  bool chooses_steps;  // see StepControl
  T in_log_p;          // prior_power / power: see add_priors
};
template <class T>
struct GdWeights : GdCoefficients<T> {
  T tol;
  int64_t iterations;
  double lr, adam_beta1, adam_beta2;
  AdamCoefficients<T> adam;
};

// From z_i . (w_k - w_K) to log p and p:
//   l_ik = tau z_i . (w_k - w_K) - shift_k, l_iK = 0;   log p_ik = l_ik - log sum_j exp l_ij
// `before`: p holds the previous iteration, compared with tol.
template <class T>
__device__ void softmax_rows(const Team& team, const TaskArrays<T>& a, T tau, bool before, T tol,
                             unsigned* moved) {
  for (int i = team.thread(); i < a.n; i += team.threads()) {
    T top = 0;
#pragma unroll 4
    for (int k = 0; k < a.K - 1; ++k) {
      const T l = a.log_p(k)[i] * tau - a.shift()[k];
      a.log_p(k)[i] = l;
      top = l > top ? l : top;
    }
    T total = exp2(-top);
#pragma unroll 4
    for (int k = 0; k < a.K - 1; ++k) total += exp2(a.log_p(k)[i] - top);
    const T log_total = top + log2(total);
    bool far = false;
#pragma unroll 4
    for (int k = 0; k < a.K; ++k) {
      const T log_p = (k < a.K - 1 ? a.log_p(k)[i] : T(0)) - log_total, p = exp2(log_p);
      if (before) {
        const T change = p - a.p(k)[i];
        far = far || change > tol || -change > tol;
      }
      a.log_p(k)[i] = log_p;
      a.p(k)[i] = p;
    }
    if (far) atomicMax(moved, 1u);
  }
}

// Sample priors enter q wherever power log p_ik does: log_p is log r_ik / power from here on. A thread has the samples that
// it had in softmax_rows.
template <class T, class Inputs>
__device__ void add_priors(const Team& team, const TaskArrays<T>& a, const Inputs& in) {
  if constexpr (Inputs::kGiven) {
    if (in.priors == nullptr) return;
    for (int i = team.thread(); i < a.n; i += team.threads())
#pragma unroll 4
      for (int k = 0; k < a.K; ++k) a.log_p(k)[i] += in.in_log_p * in.log_prior(k, i);
  }
}

// sum_p, query_p and factor_k = offset_k of q_offset, without underflow. A task that decides its marginal weight has it in
// its results: the iterations have no register to spare for it.
template <class T, class Inputs>
__device__ void adm_class_sums(const Team& team, const TaskArrays<T>& a, const AdmWeights<T>& c,
                               const Problem<T>& problem, const TaskEntry& task, const Inputs& in) {
  const int lane = lane_id();
  for (int k = team.warp(); k < a.K; k += team.warps()) {
    const T *const log_p = a.log_p(k), *const p = a.p(k);
    T on_support = 0, on_query = 0, top = -INFINITY, powers = 0;
#pragma unroll 4
    for (int i = lane; i < a.n; i += kLanes) {
      const T log_power = c.power * log_p[i];
      if (a.is_query(i)) {
        on_query += in.weighted(i, p[i]);
        top = in.counts(i) && log_power > top ? log_power : top;
      } else {
        on_support += p[i];
      }
    }
    top = warp_max(top);
#pragma unroll 4
    for (int i = lane; i < a.n; i += kLanes)
      if (a.is_query(i) && in.counts(i)) powers += in.weighted(i, exp2(c.power * log_p[i] - top));
    on_support = warp_sum(on_support);
    on_query = warp_sum(on_query);
    powers = warp_sum(powers);
    if (lane == 0) {
      a.sum_p()[k] = c.support * on_support + a.c_query() * on_query;
      a.query_p()[k] = on_query;
      AdmCoefficients<T> with = c;
      if (c.decides_marginal)
        with.marginal_power = marginal_power(problem.marginal_weights[task.task], c.beta);
      a.factor()[k] = q_offset<T>(with, top + log2(powers), a.log_prior(k));
    }
  }
}

// Sum over Q of p_ik, by one warp; the same for all of its lanes.
template <class T, class Inputs>
__device__ __forceinline__ T query_sum(const TaskArrays<T>& a, int k, const Inputs& in) {
  T sum = 0;
#pragma unroll 4
  for (int i = lane_id(); i < a.n; i += kLanes)
    if (a.is_query(i)) sum += in.weighted(i, a.p(k)[i]);
  return warp_sum(sum);
}
// m of a task that decides it; a thread alone, from query_p.
template <class T>
__device__ T decide_marginal(const TaskArrays<T>& a) {
  T divergence = 0;
  for (int k = 0; k < a.K; ++k)
    divergence += divergence_term(a.K, a.query_p()[k] / T(a.queries()), a.log_prior(k));
  return decided_marginal_weight(divergence, T(a.support) / T(a.K));
}

// q_ik = softmax_k(log r_ik - factor_k) on queries, y_ik on support samples.
template <class T>
__device__ void adm_target_rows(const Team& team, const TaskArrays<T>& a, const AdmWeights<T>& c) {
  for (int i = team.thread(); i < a.n; i += team.threads()) {
    if (!a.is_query(i)) {
#pragma unroll 4
      for (int k = 0; k < a.K; ++k) a.target(k)[i] = T(a.label[i] == k);
      continue;
    }
    T top = -INFINITY, total = 0;
#pragma unroll 4
    for (int k = 0; k < a.K; ++k) {
      const T value = c.power * a.log_p(k)[i] - a.factor()[k];
      top = value > top ? value : top;
    }
#pragma unroll 4
    for (int k = 0; k < a.K; ++k) {
      const T q = exp2(c.power * a.log_p(k)[i] - a.factor()[k] - top);
      a.target(k)[i] = q;
      total += q;
    }
    const T inverse = T(1) / total;
#pragma unroll 4
    for (int k = 0; k < a.K; ++k) a.target(k)[i] *= inverse;
  }
}

// step and stay: see class_step.
template <class T, class Inputs>
__device__ void adm_class_steps(const Team& team, const TaskArrays<T>& a, const AdmWeights<T>& c,
                                const Inputs& in) {
  const int lane = lane_id();
  for (int k = team.warp(); k < a.K; k += team.warps()) {
    T on_query = 0;
#pragma unroll 4
    for (int i = lane; i < a.n; i += kLanes)
      if (a.is_query(i)) on_query += in.weighted(i, a.target(k)[i]);
    on_query = warp_sum(on_query);
    if (lane == 0) {
      ClassSums<T> sums;
      sums.support = T(a.support_count[k]);
      sums.q = on_query;
      sums.p = a.sum_p()[k];
      const ClassStep<T> w = class_step<T>(c, a.c_query(), sums);
      a.step()[k] = w.step;
      a.stay()[k] = w.stay;
    }
  }
}

// target_ik <- p_ik + v_i (q_ik - p_ik) on queries, for the update of a form: X_ik = c_Q (target_ik - p_ik). A thread has the
// samples that it has there.
template <class T, class Inputs>
__device__ void weigh_targets(const Team& team, const TaskArrays<T>& a, const Inputs& in) {
  if constexpr (Inputs::kGiven)
    for (int i = team.thread(); i < a.n; i += team.threads()) {
      if (!a.is_query(i)) continue;
#pragma unroll 4
      for (int k = 0; k < a.K; ++k) {
        const T p = a.p(k)[i];
        a.target(k)[i] = p + in.weighted(i, a.target(k)[i] - p);
      }
    }
}

// p log_a p from p and log2 p, log_a x = (x^(a-1) - 1) / (a - 1); Shannon's for a = 1.
template <class T>
__device__ __forceinline__ T p_log(T p, T log_p, T order) {
  if (order == T(1)) return p * log_p * T(kLn2);
  const T t = log_p * (order - T(1)) * T(kLn2);
  const bool small = t < T(0.5) && -t < T(0.5);
  return (small ? p * expm1(t) : exp2(log_p * order) - p) / (order - T(1));
}
// log_a(phat_k / (K prior_k)); a phat of 0 counts as the smallest normal number.
template <class T>
__device__ __forceinline__ T log_marginal(const TaskArrays<T>& a, int k, T order) {
  const T sum = a.query_p()[k] > Range<T>::smallest ? a.query_p()[k] : Range<T>::smallest;
  const T log_share = (log2(sum) - log2(T(a.queries())) + a.log_prior(k)) * T(kLn2);
  return log_of_order(log_share, order);
}

// query_p, and factor_k = a m log_a(phat_k / (K prior_k)).
template <class T, class Inputs>
__device__ void gd_class_sums(const Team& team, const TaskArrays<T>& a, T marginal_weight, T order,
                              const Inputs& in) {
  const int lane = lane_id();
  for (int k = team.warp(); k < a.K; k += team.warps()) {
    const T on_query = query_sum(a, k, in);
    if (lane == 0) {
      a.query_p()[k] = on_query;
      a.factor()[k] = a.queries() > 0 ? marginal_weight * order * log_marginal(a, k, order) : T(0);
    }
  }
}

// g_ik = dL / d logit_ik into x (grouped by four classes):
//   lam/|S| (p_ik - y_ik) on S;   1/|Q| (v_ik - p_ik sum_j v_ij) on Q,  v_ik = p_ik factor_k - alpha a p_ik log_a p_ik
// where v_ik loses lam_0 p_ik log prior_ik with sample priors, and all of it is weighted with sample weights.
template <class T, class Inputs>
__device__ void gd_gradient_rows(const Team& team, const TaskArrays<T>& a, const GdWeights<T>& c, T* x,
                                 const Inputs& in) {
  for (int i = team.thread(); i < a.n; i += team.threads()) {
    if (!a.is_query(i)) {
      const T weight = gd_support_weight<T>(c.lam, T(a.support));
#pragma unroll 4
      for (int k = 0; k < a.K; ++k) x[grouped(i, k, a.ld)] = weight * (a.p(k)[i] - T(a.label[i] == k));
      continue;
    }
    T total = 0;
#pragma unroll 4
    for (int k = 0; k < a.K; ++k) {
      const T p = a.p(k)[i];
      T v = p * a.factor()[k] - c.alpha * c.order * p_log(p, a.log_p(k)[i], c.order);
      if constexpr (Inputs::kGiven) v -= c.sample_prior * T(kLn2) * p * in.log_prior(k, i);
      x[grouped(i, k, a.ld)] = v;
      total += v;
    }
    const T weight = in.weighted(i, gd_query_weight<T>(T(a.queries())));
#pragma unroll 4
    for (int k = 0; k < a.K; ++k) {
      T& g = x[grouped(i, k, a.ld)];
      g = weight * (g - a.p(k)[i] * total);
    }
  }
}

// step_k = sum_i g_ik.
template <class T>
__device__ void gd_class_totals(const Team& team, const TaskArrays<T>& a, const T* x) {
  const int lane = lane_id();
  for (int k = team.warp(); k < a.K; k += team.warps()) {
    T total = 0;
#pragma unroll 4
    for (int i = lane; i < a.n; i += kLanes) total += x[grouped(i, k, a.ld)];
    total = warp_sum(total);
    if (lane == 0) a.step()[k] = total;
  }
}

// One row of the history, by one warp: cross entropy on S, marginal entropy and conditional entropy on Q, and with sample
// priors the cross entropy with them. Needs query_p. Unrolled with sample inputs, adm_primal_kernel<double> spills.
template <class T, class Inputs>
__device__ void write_terms(const TaskArrays<T>& a, T order, T* terms, const Inputs& in) {
  const int lane = lane_id();
  T cross = 0, conditional = 0, marginal = 0, with_priors = 0;
#pragma unroll(Inputs::kGiven ? 1 : 4)
  for (int i = lane; i < a.n; i += kLanes) {
    if (!a.is_query(i)) {
      cross += a.log_p(a.label[i])[i];
      continue;
    }
#pragma unroll(Inputs::kGiven ? 1 : 4)
    for (int k = 0; k < a.K; ++k) {
      T log_p = a.log_p(k)[i];
      if constexpr (Inputs::kGiven) {
        const T log_prior = in.log_prior(k, i);
        log_p -= in.in_log_p * log_prior;
        with_priors += in.weighted(i, a.p(k)[i] * log_prior);
      }
      conditional += in.weighted(i, p_log(a.p(k)[i], log_p, order));
    }
  }
  if (a.queries() > 0)
    for (int k = lane; k < a.K; k += kLanes)
      if (a.query_p()[k] > 0) marginal += a.query_p()[k] * log_marginal(a, k, order);
  cross = warp_sum(cross);
  conditional = warp_sum(conditional);
  marginal = warp_sum(marginal);
  if constexpr (Inputs::kGiven) with_priors = warp_sum(with_priors);
  if (lane == 0) {
    terms[0] = -T(kLn2) * cross / T(a.support);
    terms[1] = a.queries() > 0 ? -marginal / T(a.queries()) : T(0);
    terms[2] = a.queries() > 0 ? -conditional / T(a.queries()) : T(0);
    if constexpr (Inputs::kGiven)
      if (in.priors != nullptr) terms[3] = a.queries() > 0 ? -T(kLn2) * with_priors / T(a.queries()) : T(0);
  }
}

// p and its argmax to where the caller wants them. A probability that is not one marks the task.
template <class T>
__device__ void write_rows(const Team& team, const TaskArrays<T>& a, const Problem<T>& problem,
                           const TaskEntry& task) {
  for (int i = team.thread(); i < a.n; i += team.threads()) {
    const int64_t where = problem.position[task.first_sample + i];
    int best = 0;
    T largest = a.p()[i];
    bool proper = true;
#pragma unroll 4
    for (int k = 0; k < a.K; ++k) {
      const T p = a.p(k)[i];
      if (p > largest) {
        best = k;
        largest = p;
      }
      proper = proper && p <= T(2);  // false for NaN
      if (problem.probs) problem.probs[task.first_prob + where * a.K + k] = p;
    }
    problem.predictions[task.first_sample + where] = best;
    if (!proper)  // the status was 0
      atomicMax(reinterpret_cast<unsigned long long*>(problem.status) + 3 * int64_t(task.task),
                static_cast<unsigned long long>(Status::result_not_finite));
  }
}

// The rows of a task's history, or null.
template <class T>
__device__ T* history_of(const Problem<T>& problem, const TaskEntry& task, int terms) {
  return problem.history ? problem.history + terms * problem.history_length * task.task : nullptr;
}

template <class T, class Inputs>
__device__ __forceinline__ void write_proportions(const Team& team, const TaskArrays<T>& a,
                                                  const Problem<T>& problem, const TaskEntry& task,
                                                  const Inputs& in) {
  for (int k = team.warp(); k < a.K; k += team.warps()) {
    const T sum = query_sum(a, k, in);
    if (lane_id() == 0)
      problem.proportions[task.first_class + k] = a.queries() > 0 ? sum / T(a.queries()) : T(0);
  }
}
// What a solve leaves besides W.
template <bool takes_inputs, class T>
__device__ void write_results(const Team& team, const TaskArrays<T>& a, const Problem<T>& problem,
                              const TaskEntry& task, int64_t iterations) {
  if (team.thread() == 0) problem.iterations[task.task] = iterations;
  write_rows(team, a, problem, task);
  if (problem.proportions == nullptr) return;
  with_inputs<takes_inputs>(problem, task, a.n, T(0),
                            [&](const auto& in) { write_proportions(team, a, problem, task, in); });
}

}  // namespace cuda
}  // namespace tim_ext
