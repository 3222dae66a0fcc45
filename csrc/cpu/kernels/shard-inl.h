// The halves of an iteration on a part of a task: the passes of passes-inl.h, cut where the sums over the parts are due.
// Every sum leaves in double, so that adding the parts costs no digits. log p lies with the caller in between.
//
//   softmax half    columns[0] = sum_i c_i p_ik,  columns[1] = log2 sum over Q of p_ik^power,
//                   columns[2] = sum over Q of p_ik
//                   scalars = how far power log2 p_ik stays above underflow;  sum over S of log2 p_i,y(i);
//                             sum over Q, k of p log_a p;  max |p - before|
//   weighted half   sums_k = sum_i x_ik z_i,  totals_k = sum over Q of q_ik or sum_i g_ik
// Where a mean is given, z_i is scale_i x_i minus it, and the weights are W minus it.
#pragma once

#include "cpu/kernels/gd-inl.h"
#include "cpu/kernels/passes-inl.h"
#include "cpu/kernels/prelude.h"

namespace tim_ext {
namespace TIM_ISA {

template <class T>
class Shard : public PrimalPasses<T> {
 public:
  using Base = PrimalPasses<T>;
  Shard(const Task& task, const Coefficients<T>& c, bool all_columns, const T* scale, T* log_probs, T* before,
        const Team& team, Arena& arena)
      : Base(task, c, false, all_columns, scale, team, arena, kept(task, log_probs, before)) {}

  void prepare() { this->prepare_samples(); }

  void set_weights(const T* weights) {
    weight_differences(this->team_, weights, this->task_.classes, this->task_.dim, this->c_.tau,
                       this->difference_, this->pitch_, this->state.shift);
  }

  void softmax(const ShardParams& params, bool change, double* columns, double* scalars) {
    const int64_t K = this->task_.classes;
    ClassState<T>& s = this->state;
    const bool powers = params.power > 0 && this->task_.query > 0;
    SoftmaxWants wants;
    wants.power = powers;
    wants.finish = true;
    wants.history = params.terms;
    wants.change = change;
    softmax_half<0>(*this, this->task_, this->c_, s, wants);
    total(0, columns);
    const T smallest = smallest_of(s, this->blocks);
    scalars[0] = double(smallest) - double(Simd<T>::exp2_min);
    for (int64_t k = 0; k < K; ++k) columns[K + k] = -std::numeric_limits<double>::infinity();
    if (powers) {
      const bool exact = !(smallest > Simd<T>::exp2_min);
      if (exact) exact_columns(*this, K, this->c_, s, true);
      total(1, columns + K);
      for (int64_t k = 0; k < K; ++k)
        columns[K + k] = __builtin_log2(columns[K + k]) + (exact ? double(s.largest[k]) : 0.0);
    }
    for (int64_t k = 0; k < K; ++k) columns[2 * K + k] = 0;
    scalars[1] = scalars[2] = 0;
    if (params.terms) terms(params, columns + 2 * K, scalars + 1);
    scalars[3] = change ? double(change_of(s, this->blocks)) : 0.0;
  }

  // totals and sums [K, dim] of a weighted pass. Rows x_i that sum to 0 leave the last class as what is missing.
  void write_sums(double* sums, double* totals) {
    const int64_t K = this->task_.classes, d = this->task_.dim, pitch = this->pitch_;
    total(2, totals);
    run(this->team_, this->columns_, [&](int64_t k) {
      double* out = sums + k * d;
      for (int64_t j = 0; j < d; ++j) out[j] = 0;
      for (int64_t chunk = 0; chunk < this->chunks_; ++chunk) {
        const T* part = this->sums_ + (chunk * K + k) * pitch;
        for (int64_t j = 0; j < d; ++j) out[j] += double(part[j]);
      }
    });
    if (this->columns_ == K) return;
    double* last = sums + (K - 1) * d;
    for (int64_t j = 0; j < d; ++j) last[j] = 0;
    for (int64_t k = 0; k < K - 1; ++k)
      for (int64_t j = 0; j < d; ++j) last[j] -= sums[k * d + j];
  }

 private:
  // One A and a few blocks of K columns lie in memory per chunk: fewer chunks where they are large.
  static int64_t part_chunks(const Task& task) {
    const int64_t bytes = task.classes * (task.dim + 2 * rows_per_block<T>(task)) * int64_t(sizeof(T)),
                  most = 128 << 20;
    return bytes * 32 <= most ? 32 : bytes * 8 >= most ? 8 : most / bytes;
  }

  static Kept<T> kept(const Task& task, T* log_probs, T* before) {
    Kept<T> k;
    k.logits = log_probs;
    k.before = before;
    k.all = true;
    k.max_chunks = part_chunks(task);
    return k;
  }

  // Partial sums of all blocks.
  void total(int which, double* out) const {
    const ClassState<T>& s = this->state;
    for (int64_t k = 0; k < this->task_.classes; ++k) out[k] = 0;
    for (int64_t b = 0; b < this->blocks; ++b)
      for (int64_t k = 0; k < this->task_.classes; ++k)
        out[k] += double(s.parts[(b * 4 + which) * s.stride + k]);
  }

  void terms(const ShardParams& params, double* columns, double* cross_and_conditional) {
    const ClassState<T>& s = this->state;
    const int64_t K = this->task_.classes;
    const bool shannon = T(params.entropy_order) == T(1);
    if (!shannon)
      this->each_block([&](Block<T>& block, int64_t b) {
        restore_block<false>(K, this->c_, block);
        T both[2];
        loss_block<false, T>(K, block, T(params.entropy_order), both);
        s.history_sums(b)[1] = both[1];
      });
    for (int64_t b = 0; b < this->blocks; ++b) {
      const T* part = s.history_sums(b);
      cross_and_conditional[0] += double(part[0]);
      cross_and_conditional[1] += double(part[1]) * (shannon ? kLn2 : 1.0);
      for (int64_t k = 0; k < K; ++k) columns[k] += double(s.query_sums(b)[k]);
    }
  }
};

template <class T>
Coefficients<T> shard_coefficients(const ShardParams& p) {
  Coefficients<T> c;
  c.tau = tau_of<T>(p.temperature);
  c.support = T(p.support_weight);
  c.query = T(p.query_weight);
  c.power = T(p.power);
  return c;
}

template <class T>
int64_t shard_workspace(const Task& task) {
  Arena arena(nullptr);
  const Team nobody{1, nullptr};
  Shard<T>(task, Coefficients<T>(), true, nullptr, nullptr, nullptr, nobody, arena);
  return arena.used();
}

template <class T>
void shard_softmax(const Task& task, const ShardParams& params, const ShardSoftmax<T>& a, const Team& team,
                   void* work) {
  Arena arena(work);
  Shard<T> shard(task, shard_coefficients<T>(params), true, a.scale, a.log_probs, a.before, team, arena);
  shard.prepare();
  shard.set_weights(a.weights);
  shard.softmax(params, a.before != nullptr, a.columns, a.scalars);
}

// TIM-ADM: x_ik = c_i (t_ik - p_ik), t = y on S and q on Q.   TIM-GD: x_ik = g_ik, whose rows sum to 0.
template <class T>
void shard_sums(const Task& task, const ShardParams& params, const ShardSums<T>& a, const Team& team,
                void* work) {
  Arena arena(work);
  const bool adm = params.method == Method::adm;
  Shard<T> shard(task, shard_coefficients<T>(params), adm, a.scale, a.log_probs, nullptr, team, arena);
  shard.prepare();
  for (int64_t k = 0; k < task.classes; ++k) shard.state.factor[k] = a.factor[k];
  if (!adm) {
    GradientWeights<T> weights;
    weights.support = T(params.support_weight);
    weights.query = T(params.query_weight);
    weights.alpha = T(params.alpha);
    weights.order = T(params.entropy_order);
    gradient_pass<0, false>(shard, task.classes, weights);
  } else if (params.exact) {
    shard.template q_pass<0, From::finished_exact>();
  } else {
    shard.template q_pass<0, From::finished>();
  }
  shard.write_sums(a.sums, a.totals);
}

// p, its argmax and its largest value at given weights.
template <class T>
void shard_classify(const Task& task, const ShardParams& params, const ShardClassify<T>& a, int64_t* status,
                    const Team& team, void* work) {
  Arena arena(work);
  T* logits = arena.take<T>(shard_lanes(task.samples()) * task.classes);
  Shard<T> shard(task, softmax_coefficients<T>(params.temperature), true, a.scale, logits, nullptr, team,
                 arena);
  shard.prepare();
  shard.set_weights(a.weights);
  TaskOutputs<T> out;
  out.probs = a.probs;
  out.predictions = a.predictions;
  out.confidences = a.confidences;
  out.status = status;
  shard.finish(out);
}

}  // namespace TIM_ISA
}  // namespace tim_ext
