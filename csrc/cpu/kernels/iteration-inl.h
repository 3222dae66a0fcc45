// What the forms of the solvers share: the state of the classes, the order of an iteration, results.
#pragma once

#include "cpu/kernels/blocks-inl.h"
#include "cpu/kernels/prelude.h"
#include "cpu/kernels/sample_lanes-inl.h"
#include "cpu/kernels/workspace-inl.h"

namespace tim_ext {
namespace TIM_ISA {

// Partial sums of every block, added in block order (in double) so that the result depends on nothing else.
template <class T>
TIM_INLINE void combine(const T* parts, int64_t blocks, int64_t stride, int64_t n, T* out) {
  if (blocks == 1) {
    for (int64_t j = 0; j < n; ++j) out[j] = parts[j];
    return;
  }
  for (int64_t j = 0; j < n; ++j) {
    double sum = 0;
    for (int64_t b = 0; b < blocks; ++b) sum += double(parts[b * stride + j]);
    out[j] = T(sum);
  }
}

// Per-class state of a solve, padded to whole vectors, and partial sums per block of samples.
template <class T>
struct ClassState {
  T* count;              // [K] support samples of each class
  T* shift;              // [K] see softmax_block
  T* factor;             // [K] see From
  T* p;                  // [K] sum_i c_i p_ik                 = B_k
  T* power;              // [K] sum over Q of r_ik: p_ik^power, see log_r
  T* q;                  // [K] sum over Q of q_ik
  T* largest;            // [K] for the exact q-update
  T *step, *stay;        // [K] see class_step
  T* log_prior;          // [K] see log_prior_of, 0 for the uniform prior
  T prior_range;         // max_k |log_prior_k|
  T sample_prior_range;  // max |log prior_ik| of the sample priors, 0 without
  T* parts;              // [blocks][4][stride] partial sums: p, power, q; change of p
  T* smallest;           // [blocks]
  T* history;  // [blocks][history_stride()]: three sums for the loss terms, then [K] sum over Q of p_ik
  Vec<T>* accumulators;  // [slots][2K]
  int64_t stride;
  int64_t history_stride() const { return stride + 3; }
  T* history_sums(int64_t b) const { return history + b * history_stride(); }
  T* query_sums(int64_t b) const { return history_sums(b) + 3; }
};

template <class T>
ClassState<T> take_class_state(Arena& arena, int64_t classes, int64_t blocks, int64_t slots) {
  ClassState<T> s;
  s.stride = round_up(classes, kWidth<T>);
  for (T** array :
       {&s.count, &s.shift, &s.factor, &s.p, &s.power, &s.q, &s.largest, &s.step, &s.stay, &s.log_prior})
    *array = arena.take<T>(s.stride);
  s.parts = arena.take<T>(blocks * 4 * s.stride);
  s.smallest = arena.take<T>(blocks);
  s.history = arena.take<T>(blocks * s.history_stride());
  s.accumulators = reinterpret_cast<Vec<T>*>(arena.take<char>(slots * 2 * classes * int64_t(sizeof(Vec<T>))));
  return s;
}

// One row of the history: cross entropy on S, marginal entropy and conditional entropy on Q, cross entropy with the
// sample priors.
template <class T>
void write_history(const Task& task, const ClassState<T>& s, int64_t blocks, T* row) {
  auto total = [&](int64_t j) {
    double sum = 0;
    for (int64_t b = 0; b < blocks; ++b) sum += double(s.history_sums(b)[j]);
    return sum;
  };
  row[0] = T(-kLn2 * total(0) / double(task.support));
  double marginal = 0, conditional = 0;
  if (task.has_queries()) {
    for (int64_t k = 0; k < task.classes; ++k) {
      double share = total(3 + k) / double(task.query);
      if (share > 0) marginal -= share * (__builtin_log(share) + kLn2 * double(s.log_prior[k]));
    }
    conditional = -kLn2 * total(1) / double(task.query);
  }
  row[1] = T(marginal);
  row[2] = T(conditional);
  if (task.sample_log_prior) row[3] = task.has_queries() ? T(-kLn2 * total(2) / double(task.query)) : T(0);
}

// sum over Q of p_ik of a finished block, to where history_block has it.
template <class T>
TIM_INLINE void sum_queries(const Task& task, const ClassState<T>& s, const Block<T>& block, int64_t b) {
  query_block(task.classes, block, s.query_sums(b));
}
// phat_k = mean over Q of p_ik, from all blocks; 0 without queries.
template <class T>
void gather_proportions(const Task& task, const ClassState<T>& s, int64_t blocks, T* phat) {
  combine(s.query_sums(0), blocks, s.history_stride(), task.classes, phat);
  for (int64_t k = 0; k < task.classes; ++k) phat[k] = task.query > 0 ? phat[k] / T(task.query) : T(0);
}

// m of a task that decides it, from phat [K].
template <class T>
double decide_marginal(const Task& task, const ClassState<T>& s, const T* phat) {
  double divergence = 0;
  for (int64_t k = 0; k < task.classes; ++k)
    divergence += divergence_term(task.classes, double(phat[k]), double(s.log_prior[k]));
  return decided_marginal_weight(divergence, double(task.support) / double(task.classes));
}

// What an iteration wants of its softmax half besides p: r; log p; the sums for the loss terms; those of p over Q;
// the change of p.
struct SoftmaxWants {
  bool power = false, finish = false, history = false, shares = false, change = false;
};

// The softmax half of an iteration: p with its sums per block, and what is wanted.
template <int KT, bool known = false, class T, class Form>
TIM_INLINE void softmax_half(Form& form, const Task& task, const Coefficients<T>& c, ClassState<T>& s,
                             SoftmaxWants wants) {
  const int64_t K = task.classes;
  form.softmax_pass([&](Block<T>& block, int64_t b, int64_t) {
    T* parts = s.parts + b * 4 * s.stride;
    Sums<T> sums;
    sums.p = parts;
    sums.power = parts + s.stride;
    if (wants.power)
      softmax_block<KT, true, known>(K, c, s.shift, block, sums);
    else
      softmax_block<KT, false, known>(K, c, s.shift, block, sums);
    s.smallest[b] = sums.smallest;
    if constexpr (Form::kNeedsLog) {
      if (form.restores() && !wants.history && !wants.change && !wants.shares)
        return finish_block<false>(K, block);
    }
    if (wants.finish) finish_block(K, block);
    if (wants.shares) sum_queries(task, s, block, b);
    if (wants.history) {
      history_block(K, block, s.history_sums(b));
      if (block.log_prior) s.history_sums(b)[2] = prior_block(K, block);
    }
    if (wants.change) parts[3 * s.stride] = change_block(K, block, form.before(b));
  });
}

// A lower bound of power * log p_ik.
template <class T>
TIM_INLINE T smallest_of(const ClassState<T>& s, int64_t blocks) {
  T smallest = 0;
  for (int64_t b = 0; b < blocks; ++b) smallest = s.smallest[b] < smallest ? s.smallest[b] : smallest;
  return smallest;
}

// The largest change of p, of all blocks.
template <class T>
TIM_INLINE T change_of(const ClassState<T>& s, int64_t blocks) {
  T change = 0;
  for (int64_t b = 0; b < blocks; ++b) {
    const T mine = s.parts[(b * 4 + 3) * s.stride];
    change = mine > change ? mine : change;
  }
  return change;
}

// Where r underflows, in the log domain: s.largest_k = max over Q of log r_ik, and per block
// sum over Q of exp(log r_ik - largest_k) in place of the sums of r.
template <bool known = false, class T, class Form>
void exact_columns(Form& form, int64_t K, const Coefficients<T>& c, ClassState<T>& s, bool finished) {
  auto part = [&](int64_t b) { return s.parts + (b * 4 + 1) * s.stride; };
  form.each_block([&](Block<T>& block, int64_t b) {
    if (!finished) finish_block(K, block);
    column_block<1, known>(K, c, block, s.largest, part(b));
  });
  for (int64_t k = 0; k < K; ++k) {
    s.largest[k] = part(0)[k];
    for (int64_t b = 1; b < form.blocks; ++b)
      s.largest[k] = part(b)[k] > s.largest[k] ? part(b)[k] : s.largest[k];
  }
  form.each_block(
      [&](Block<T>& block, int64_t b) { column_block<2, known>(K, c, block, s.largest, part(b)); });
}

// The iterations of TIM-ADM. `Form` is the dual or the primal form; it provides
//   softmax_pass(f)  every block with z_i . (w_k - w_K) in block.logits and s.shift set, then f(block, b, slot)
//   q_step()         from p and r in the blocks and s.factor to the next W
//   each_block(f)    every block, as softmax_block left its logits
//   kNeedsLog        whether blocks must be finished (log p in place of l) after every softmax
//   before(b)        p of the previous iteration, if params.tol > 0
//   team()           whose pause may end it
// `known`: whether there are priors of single samples.
// Returns the number of updates made; all blocks are then finished and belong to the last W.
template <int KT, bool known, class T, class Form>
int64_t iterate(Form& form, const Task& task, const AdmParams& params, Coefficients<T> c, ClassState<T>& s,
                const TaskOutputs<T>& out) {
  T* const history = out.history;
  const int64_t K = task.classes, blocks = form.blocks;
  const int64_t planned = task.has_queries() ? params.iterations : 0;
  const bool finishes = Form::kNeedsLog || history || params.tol > 0;
  auto gather = [&](int which, T* out) { combine(s.parts + which * s.stride, blocks, 4 * s.stride, K, out); };

  for (int64_t t = 0;; ++t) {
    const bool more = t < planned, decides = params.decides_marginal && more && decides_marginal_at(t);
    const bool finish = finishes || decides;
    pause(form.team());
    SoftmaxWants wants;
    wants.power = more;
    wants.finish = finish || !more;
    wants.history = history != nullptr;
    wants.shares = decides;
    wants.change = params.tol > 0;
    softmax_half<KT, known>(form, task, c, s, wants);
    if (history) write_history(task, s, blocks, history + task.history_terms() * t);
    const bool decided = !params.decides_marginal || t > kDecidedAfter;
    if (params.tol > 0 && t > 0 && decided && change_of(s, blocks) <= T(params.tol)) return t;
    if (!more) return t;
    if (decides) {
      gather_proportions(task, s, blocks, s.q);
      const double m = marginal_weight_from(t, decide_marginal(task, s, s.q));
      *out.marginal_weight = T(m);
      c.marginal_power = T(marginal_power(m, params.beta));
    }

    gather(0, s.p);
    const T range = known ? s.prior_range + c.prior_power * s.sample_prior_range : s.prior_range;
    if (smallest_of(s, blocks) - range > Simd<T>::exp2_min) {
      gather(1, s.power);
      marginal_factors(K, c, s.power, s.log_prior, s.factor);
      if (finish)
        form.template q_step<0, From::finished, known>();
      else
        form.template q_step<KT, From::softmax, known>();
    } else {
      exact_columns<known>(form, K, c, s, finish);
      gather(1, s.power);
      for (int64_t k = 0; k < K; ++k)
        s.factor[k] = q_offset(c, s.largest[k] + T(__builtin_log2(double(s.power[k]))), s.log_prior[k]);
      form.template q_step<0, From::finished_exact, known>();
    }
  }
}

// sum over Q of q_ik of one block into its place in s.parts.
template <int KT, From from, bool known, class T>
TIM_INLINE void q_total(const Task& task, const Coefficients<T>& c, ClassState<T>& s, const Block<T>& block,
                        int64_t b) {
  Sums<T> sums;
  sums.q = s.parts + (b * 4 + 2) * s.stride;
  q_total_block<KT, from, known>(task.classes, c, s.factor, block, sums);
}

// s.q = sum over Q of q_ik, and what the w-update needs.
template <class T>
TIM_INLINE void combine_q(const Task& task, const Coefficients<T>& c, ClassState<T>& s, int64_t blocks) {
  combine(s.parts + 2 * s.stride, blocks, 4 * s.stride, task.classes, s.q);
  for (int64_t k = 0; k < task.classes; ++k) {
    ClassSums<T> sums;
    sums.support = s.count[k];
    sums.q = s.q[k];
    sums.p = s.p[k];
    const ClassStep<T> w = class_step(c, c.query, sums);
    s.step[k] = w.step;
    s.stay[k] = w.stay;
  }
}

// The classes of a task before the first iteration.
template <class T>
void fill_classes(const Task& task, ClassState<T>& s) {
  s.prior_range = s.sample_prior_range = T(0);
  for (int64_t k = 0; k < s.stride; ++k) {
    s.count[k] = T(0);
    s.power[k] = T(1);
    s.log_prior[k] =
        task.class_prior && k < task.classes ? T(log_prior_of(task.classes, task.class_prior[k])) : T(0);
    const T size = s.log_prior[k] < 0 ? -s.log_prior[k] : s.log_prior[k];
    s.prior_range = size > s.prior_range ? size : s.prior_range;
  }
  for (int64_t i = 0; i < task.support; ++i) s.count[task.labels[i]] += T(1);
}

// probs and predictions of the samples i0 .. i0 + n - 1 of a block, in the caller's order. A probability that is not
// one marks the task: its parameters left the range of T.
template <class T>
void write_results(const Task& task, const TaskOutputs<T>& out, const Block<T>& b, int64_t i0, int64_t n) {
  const int64_t K = task.classes;
  for (int64_t i = 0; i < n; ++i) {
    const int64_t where = task.position[i0 + i];
    int64_t best = 0;
    bool proper = true;
    for (int64_t k = 0; k < K; ++k) {
      if (b.p[k * b.ld + i] > b.p[best * b.ld + i]) best = k;
      proper = proper && b.p[k * b.ld + i] <= T(2);  // false for NaN
    }
    if (!proper) *out.status = static_cast<int64_t>(Status::result_not_finite);
    out.predictions[where] = best;
    if (out.confidences) out.confidences[where] = b.p[best * b.ld + i];
    if (out.probs)
      for (int64_t k = 0; k < K; ++k) out.probs[where * K + k] = b.p[k * b.ld + i];
  }
}

// Rows per block where feature rows are read in blocks: up to 384 KB of them, so that they stay in L2.
template <class T>
int64_t rows_per_block(const Task& task) {
  int64_t rows = 256;
  while (rows > 2 * kWidth<T> && rows * task.dim * int64_t(sizeof(T)) > 384 * 1024) rows /= 2;
  return rows;
}

// difference_k = w_k - w_K [K - 1, pitch] and shift_k = tau/2 (w_k - w_K) . (w_k + w_K) from weights [K, dim].
template <class T>
void weight_differences(const Team& team, const T* weights, int64_t classes, int64_t dim, T tau,
                        T* difference, int64_t pitch, T* shift) {
  const T* last = weights + (classes - 1) * dim;
  run(team, classes - 1, [&](int64_t k) {
    double sum = 0;
    for (int64_t j = 0; j < dim; ++j) {
      const T w = weights[k * dim + j];
      difference[k * pitch + j] = w - last[j];
      sum += double(w - last[j]) * double(w + last[j]);
    }
    shift[k] = T(double(tau) / 2 * sum);
  });
}

// f(constant) with the number of classes for which loops over classes are unrolled, or 0.
template <int Low, int High, class F>
void with_fixed_classes(int64_t classes, F f) {
  if constexpr (Low > High)
    f(std::integral_constant<int, 0>{});
  else if (classes == Low)
    f(std::integral_constant<int, Low>{});
  else
    with_fixed_classes<Low + 1, High>(classes, f);
}

// Bytes of a form on a task.
template <class Form, class Params>
int64_t workspace_of(const Task& task, const Params& params) {
  Arena arena(nullptr);
  const Team nobody{1, nullptr};
  Form(task, params, nullptr, nobody, arena);
  return arena.used();
}

}  // namespace TIM_ISA
}  // namespace tim_ext
