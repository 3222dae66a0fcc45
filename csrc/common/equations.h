// The coefficients of TIM's updates, each written once: for the CPU, for CUDA and for its emulation. What a new input of
// the iteration changes, it changes here.
//
// Counts are divided in the type N that they come in: double where a task is prepared once, T in a kernel.
#pragma once

#include <math.h>  // with the overloads of <cmath> in the global namespace, as in CUDA

#include "common/numbers.h"
#include "common/problem.h"

namespace tim_ext {

// Logits and log p are in units of log 2.
template <class T>
TIM_HD T tau_of(double temperature) {
  return T(temperature * kLog2e);
}

// -log2(K prior_k): what a class prior adds to the logarithm of a marginal.
TIM_HD double log_prior_of(int64_t classes, double prior) { return -log2(double(classes) * prior); }

// TIM-ADM --------------------------------------------------------------------------------------------

// What the hyper-parameters alone decide.
template <class T>
struct AdmCoefficients {
  T tau;             // temperature / ln 2
  T support;         // c_S = lam / (beta + alpha), of a support sample in every sum
  T power;           // 1 + alpha / beta, of p_ik in r_ik
  T prior_power;     // lam_0 / beta, of the sample prior in r_ik = p_ik^power prior_ik^prior_power
  T marginal_power;  // m / (m + beta), of sum over Q of r_ik in q_ik
  T relaxation;      // f of W + f (F(W) - W)
  T keep;            // 1; 0 for f (F(W) - W) alone
};
template <class N>
TIM_HD N marginal_power(N marginal_weight, N beta) {
  return marginal_weight / (marginal_weight + beta);
}
template <class T>
TIM_HD AdmCoefficients<T> adm_coefficients(const AdmParams& p) {
  AdmCoefficients<T> c;
  c.tau = tau_of<T>(p.temperature);
  c.support = T(p.lam / (p.beta + p.alpha));
  c.power = T(1 + p.alpha / p.beta);
  c.prior_power = T(p.sample_prior_weight / p.beta);
  c.marginal_power = T(marginal_power(p.marginal_weight, p.beta));
  c.relaxation = p.chooses_steps ? T(1) : T(p.relaxation);
  c.keep = p.chooses_steps ? T(0) : T(1);
  return c;
}

// A task that decides its marginal weight does so from phat at the prototypes, for some iterations and with a small one at
// most, and then once more:
//   m = max(least, min(1, equal s^-1/2 / KL(phat || prior))^2),   s = |S| / K:
// the marginal term is kept as far as the pool does not contradict it.
constexpr int64_t kDecidedAfter = 25;  // iterations
constexpr double kUndecidedMarginal = 0.1, kLeastMarginal = 0.005;
constexpr double kEqualDivergence = 0.05;  // that still passes for the prior, with one sample per class
template <class N>
TIM_HD N decided_marginal_weight(N divergence, N shots) {
  const N equal = N(kEqualDivergence) / sqrt(shots);
  const N ratio = divergence > equal ? equal / divergence : N(1);
  return ratio * ratio > N(kLeastMarginal) ? ratio * ratio : N(kLeastMarginal);
}
TIM_HD bool decides_marginal_at(int64_t iteration) { return iteration == 0 || iteration == kDecidedAfter; }
// m from that iteration on.
template <class N>
TIM_HD N marginal_weight_from(int64_t iteration, N decided) {
  return iteration == 0 && decided > N(kUndecidedMarginal) ? N(kUndecidedMarginal) : decided;
}
// A term of KL(phat || prior) from phat_k and log_prior_of.
template <class N>
TIM_HD N divergence_term(int64_t classes, N share, N log_prior) {
  return share > N(0) ? share * N(kLn2) * (log2(N(classes) * share) + log_prior) : N(0);
}

// Smoothing over the graph of the k nearest neighbours (tim_ext/reference.py)
//   z_i <- ||z_i|| y_i / ||y_i||,   y = (I - r S)^-1 z,   S = D^-1/2 A D^-1/2,   D_i = max(least, sum_j a_ij)
//   a_ij = (b_ij + b_ji) / 2,   b_ij = max(0, cos(z_i - mean, z_j - mean))^3 for the k nearest j, else 0
// The reach r of a task that chooses it: 0.7 s^-0.2, and longer where a class has many samples,
//   1 - r = (1 - 0.7 s^-0.2) sqrt(100 / n),   n = N / K > 100,   r <= 0.9
constexpr double kFewPerClass = 100, kLongestReach = 0.9;
template <class Params>
TIM_HD bool smooths(const Params& p) {
  return p.smooths_by_shots || p.smoothing > 0;
}
template <class Params>
TIM_HD double smoothing_reach(const Params& p, double support, double samples, double classes) {
  if (!p.smooths_by_shots) return p.smoothing;
  const double reach = 0.7 * pow(support / classes, -0.2), per_class = samples / classes;
  if (per_class <= kFewPerClass) return reach;
  const double longer = 1 - (1 - reach) * sqrt(kFewPerClass / per_class);
  return longer < kLongestReach ? longer : reach > kLongestReach ? reach : kLongestReach;
}
constexpr int64_t kMostNeighbours = 10;
TIM_HD int64_t neighbours_of(int64_t samples, int64_t classes) {  // N / 2K, rounded, within 3 .. 10
  const int64_t k = (samples + classes) / (2 * classes), most = k < kMostNeighbours ? k : kMostNeighbours,
                some = most > 3 ? most : 3;
  return some < samples - 1 ? some : samples - 1;
}
constexpr double kLeastDegree = 1e-9;

// y = (I - r S)^-1 c by Chebyshev's iteration, where (I - r S) itself is too large to invert:
//   y_n = y_(n-2) + w_n (r S y_(n-1) + c - y_(n-2)),   w_1 = 1, w_2 = 2 / (2 - r^2), w_(n+1) = 1 / (1 - w_n r^2 / 4)
// from y_0 = 0. As the eigenvalues of r S lie within -r .. r, the error falls by (1 - sqrt(1 - r^2)) / r with each step.
template <class T>
TIM_HD int64_t chebyshev_steps(double reach) {  // until the error is below the rounding of T
  const double factor = (1 - sqrt(1 - reach * reach)) / reach;
  const double steps = log(double(Range<T>::epsilon) / 16) / log(factor);
  return 2 + (steps > 0 ? int64_t(steps) : 0);
}
TIM_HD double chebyshev_factor(int64_t step, double reach, double before) {  // w of a step from that before
  return step == 1 ? 1.0 : step == 2 ? 2 / (2 - reach * reach) : 1 / (1 - before * reach * reach / 4);
}

// Sample weights are scaled to a mean of 1 over the queries, so that |Q| stays their number.
TIM_HD double sample_weight_scale(double queries, double total) { return total > 0 ? queries / total : 0; }

// c_Q = |S| / |Q|, of a query in every sum.
template <class T, class N>
TIM_HD T query_weight(N support, N query) {
  return query > N(0) ? T(support / query) : T(0);
}

// log q_ik = log r_ik - offset_k + (a constant of sample i),   log r_ik = power log p_ik + prior_power log prior_ik
//   offset_k = m / (m + beta) (log sum over Q of r_ik - log(K prior_k))
// in whatever unit the logarithms have. (marginal_factors of the CPU is the same on vectors.)
template <class T>
TIM_HD T q_offset(const AdmCoefficients<T>& c, T log_sum, T log_prior) {
  return c.marginal_power * (log_sum + log_prior);
}

// The sums of a class in the w-update.
template <class T>
struct ClassSums {
  T support;  // |S_k|
  T q;        // sum over Q of q_ik
  T p;        // sum_i c_i p_ik
};
// w_k <- step_k sum_i c_i (t_ik - p_ik) z_i + stay_k w_k,   t = y on S and q on Q
//   D_k = c_S |S_k| + c_Q sum over Q of q_ik,   step_k = 1 / D_k,   stay_k = sum_i c_i p_ik / D_k
// A class without mass (only if lam = 0) stays. With f the relaxation, both are those of keep W + f (F(W) - W).
template <class T>
struct ClassStep {
  T step, stay;
};
template <class T>
TIM_HD ClassStep<T> class_step(const AdmCoefficients<T>& c, T query, const ClassSums<T>& sums) {
  const T mass = c.support * sums.support + query * sums.q;
  const bool some = mass >= Range<T>::smallest;
  ClassStep<T> s;
  s.step = some ? c.relaxation * (T(1) / mass) : T(0);
  s.stay = some ? c.keep - c.relaxation + c.relaxation * (sums.p / mass) : c.keep;
  return s;
}
// The same where D_k comes from assignments that are given: one element of w_k, and of sum_i c_i (t_ik - p_ik) z_i.
template <class T>
TIM_HD T stepped(T mass, T sum_p, T w, T sum) {
  return mass >= Range<T>::smallest ? (sum + sum_p * w) / mass : w;
}

// Steps that a task chooses itself. At the points W_t, with the residuals R_t = F(W_t) - W_t and the inner product
//   <A, B> = sum_k (a_k - mean_j a_j) . (b_k - mean_j b_j)          what all classes share moves no probability
// W_(t+1) = W_t + f_t R_t, where f_t is the first step for some iterations, then the shorter one of Barzilai and Borwein:
//   f_t = f_(t-1) <R_(t-1), Y> / <Y, Y> within the least .. largest step,   Y = R_(t-1) - R_t
// The last iterations are guarded: a point whose <R, R> is above that of the point it came from is refused, and half
// of that step is taken instead. The very last one only looks: it refuses the point, or leaves it as it is.
constexpr int64_t kFirstSteps = 6, kGuardedSteps = 10;  // iterations
constexpr double kLeastStep = 0.2, kLargestStep = 5;
TIM_HD double first_step(int64_t samples) {
  return samples <= 1000 ? 1.5 : 0.5;
}  // large pools burst otherwise

// How far W moves, along the residual of the point at hand, or along the one before it if this point is refused.
struct StepMove {
  double factor;
  bool refused;
};
struct StepControl {
  int64_t planned, samples;
  bool decides_marginal;
  int64_t next = 0;     // t
  double factor = 0;    // f of the step before
  double residual = 0;  // <R, R> of the point before

  TIM_HD StepControl(int64_t iterations, int64_t task_samples, bool decides)
      : planned(iterations), samples(task_samples), decides_marginal(decides) {}

  // own = <R_t, R_t>, mixed = <R_(t-1), R_t>
  TIM_HD StepMove move(double own, double mixed) {
    const int64_t t = next++;
    const bool last = t + 1 == planned;
    const bool changed = decides_marginal && t == kDecidedAfter;  // F is another one: nothing to compare with
    if (t > 0 && t + kGuardedSteps >= planned && !changed && own > residual) {
      const double before = factor;
      factor = last ? 0 : before / 2;
      return {factor - before, true};
    }
    factor = last              ? 0
             : t < kFirstSteps ? first_step(samples)
             : changed         ? (factor < 1 ? factor : 1)
                               : secant(own, mixed);
    residual = own;
    return {factor, false};
  }

 private:
  TIM_HD double secant(double own, double mixed) const {
    const double along = residual - mixed, square = residual - 2 * mixed + own;
    const double f = along > 0 ? factor * along / square : kLargestStep;
    return f > kLargestStep ? kLargestStep : f > kLeastStep ? f : kLeastStep;
  }
};

// TIM-GD ---------------------------------------------------------------------------------------------

template <class T>
struct GdCoefficients {
  T tau;                          // temperature / ln 2
  T temperature;                  // dL/dw_k = temperature (sum_i g_ik z_i - w_k sum_i g_ik)
  T lam, alpha, marginal_weight;  // L = lam CE - m M + alpha H + lam_0 D
  T sample_prior;                 // lam_0
  T order;                        // a of the entropies; what rounds to 1 is Shannon's
};
template <class T>
TIM_HD GdCoefficients<T> gd_coefficients(const GdParams& p) {
  GdCoefficients<T> c;
  c.tau = tau_of<T>(p.temperature);
  c.temperature = T(p.temperature);
  c.lam = T(p.lam);
  c.alpha = T(p.alpha);
  c.marginal_weight = T(p.marginal_weight);
  c.sample_prior = T(p.sample_prior_weight);
  c.order = T(p.entropy_order);
  return c;
}

// The loss from its terms CE, M, H.
template <class T>
TIM_HD T loss_of(const GdCoefficients<T>& c, const T* terms) {
  return c.lam * terms[0] - c.marginal_weight * terms[1] + c.alpha * terms[2];
}

// g_ik = lam / |S| (p_ik - y_ik) on S
template <class T, class N>
TIM_HD T gd_support_weight(N lam, N support) {
  return T(lam / support);
}
// g_ik = 1 / |Q| (v_ik - p_ik sum_j v_ij) on Q
template <class T, class N>
TIM_HD T gd_query_weight(N query) {
  return query > N(0) ? T(N(1) / query) : T(0);
}

// log_a(x) = (x^(a-1) - 1) / (a - 1) from log x.
template <class T>
TIM_HD T log_of_order(T log_x, T order) {
  return order == T(1) ? log_x : expm1((order - T(1)) * log_x) / (order - T(1));
}

// Adam as in torch.optim.Adam:
//   first <- first + (g - first) add_first,   second <- second keep_second + g^2 add_second
//   w <- w - first rate / (sqrt(second) correction + eps)
template <class T>
struct AdamCoefficients {
  T add_first;    // 1 - beta1
  T keep_second;  // beta2
  T add_second;   // 1 - beta2
  T eps;          // at least the smallest normal number, so that 0 / 0 does not occur
};
template <class T>
TIM_HD AdamCoefficients<T> adam_coefficients(const GdParams& p) {
  AdamCoefficients<T> c;
  c.add_first = T(1 - p.adam_beta1);
  c.keep_second = T(p.adam_beta2);
  c.add_second = T(1 - p.adam_beta2);
  c.eps = T(p.eps) > Range<T>::smallest ? T(p.eps) : Range<T>::smallest;
  return c;
}

// The bias corrections of step t = 1, 2, ...
template <class T>
struct AdamStep {
  T rate;        // lr / (1 - beta1^t)
  T correction;  // 1 / sqrt(1 - beta2^t)
};
template <class T>
TIM_HD AdamStep<T> adam_step(double lr, double beta1_to_t, double beta2_to_t) {
  AdamStep<T> s;
  s.rate = T(lr / (1 - beta1_to_t));
  s.correction = T(1 / sqrt(1 - beta2_to_t));
  return s;
}

}  // namespace tim_ext
