// TIM-GD: Adam on W with the analytic gradient of
//   L = lam CE(S) - m M(phat) + alpha H(Y|X on Q) + lam_0 D,   phat_k = mean over Q of p_ik
// with entropies of order a (Tsallis; a = 1 is Shannon) through log_a(x) = (x^(a-1) - 1) / (a - 1):
//   H = -mean over Q sum_k p_ik log_a(p_ik),   M = -sum_k phat_k log_a(phat_k / (K prior_k))
// and D = -mean over Q of sum_k p_ik log prior_ik, where sample priors are given
// (M is the marginal entropy for the uniform prior, and log K - KL(phat || prior) in general.)
//
//   g_ik = lam/|S| (p_ik - y_ik)                                          i in S
//   g_ik = 1/|Q| (v_ik - p_ik sum_j v_ij)                                 i in Q
//   v_ik = p_ik a [ m log_a(phat_k / (K prior_k)) - alpha log_a(p_ik) ] - lam_0 p_ik log prior_ik
//   dL/dw_k = tau ( sum_i g_ik z_i - w_k sum_i g_ik )
// The rows g_i sum to 0, so the passes of passes-inl.h apply.
#pragma once

#include "cpu/kernels/passes-inl.h"
#include "cpu/kernels/prelude.h"

namespace tim_ext {
namespace TIM_ISA {

// exp(t) - 1 for |t| <= 1/2.
template <class T>
TIM_INLINE Vec<T> small_expm1(Vec<T> t) {
  constexpr int degree = sizeof(T) == 4 ? 8 : 14;
  Vec<T> y = splat<T>(1);
#pragma GCC unroll 16
  for (int j = degree; j > 1; --j) y = y * t * T(1.0 / j) + T(1);
  return y * t;
}

// p log_a(p) from p and log2 p, without overflow where p is 0 to machine precision.
template <bool shannon, class T>
TIM_INLINE Vec<T> p_log(Vec<T> p, Vec<T> log_p, T order) {
  if constexpr (shannon) return p * log_p * T(kLn2);
  const Vec<T> t = log_p * T((double(order) - 1) * kLn2);
  const IVec<T> small = vmax(t, -t) < T(0.5);
  const Vec<T> near = p * small_expm1<T>(small ? t : Vec<T>{}), far = vexp2<T>(log_p * order) - p;
  return (small ? near : far) / T(double(order) - 1);
}

// Sums of a block: out[0] = sum over S of log2 p_i,y(i), out[1] = sum over Q, k of p log_a p.
template <bool shannon, class T>
TIM_INLINE void loss_block(int64_t classes, Block<T> b, T order, T* out) {
  constexpr int W = kWidth<T>;
  Vec<T> cross = Vec<T>{}, conditional = Vec<T>{};
  for (int64_t k = 0; k < classes; ++k)
    for (int64_t v = 0; v < b.vectors; ++v) {
      const IVec<T> labels = load_labels(b, v);
      const Vec<T> log_p = load(b.logits + k * b.ld + v * W), p = load(b.p + k * b.ld + v * W);
      cross += keep<T>(labels == typename Simd<T>::Int(k), log_p);
      conditional += p_log<shannon, T>(p, log_p, order) * load(b.share + v * W);
    }
  out[0] = reduce_add<T>(cross);
  out[1] = reduce_add<T>(conditional);
}

// The weights of samples and terms in g_ik.
template <class T>
struct GradientWeights {
  T support, query;       // lam / |S|, 1 / |Q|
  T alpha, order;         // of the conditional entropy; of both entropies
  T sample_prior = T(0);  // lam_0
};

// g_ik into block.x, and its sums over the block into out [K]. marginal_k = a m log_a(phat_k / (K prior_k)).
template <int KT, bool shannon, bool known, class T>
TIM_INLINE void gradient_block(int64_t classes, Block<T> b, const T* marginal, GradientWeights<T> c,
                               Vec<T>* accumulators, T* out) {
  constexpr int W = kWidth<T>;
  const int64_t K = KT ? KT : classes;
  Vec<T> fixed[KT ? KT : 1];
  Vec<T>* acc = KT ? fixed : accumulators;
  for (int64_t k = 0; k < K; ++k) acc[k] = Vec<T>{};
  const T order = c.order, slope = c.alpha * c.order;
  [[maybe_unused]] const T tie = c.sample_prior * T(kLn2);
  for_vectors(b, [&](int64_t v, auto kind) TIM_LAMBDA_INLINE {
    constexpr Lanes lanes = decltype(kind)::value;
    const IVec<T> labels = load_labels(b, v);
    const Vec<T> on_query = lanes == Lanes::support ? Vec<T>{} : load(b.share + v * W) * c.query;
    const Vec<T> on_support = lanes == Lanes::query     ? Vec<T>{}
                              : lanes == Lanes::support ? splat(c.support)
                                                        : keep<T>(labels >= 0, splat(c.support));
    Vec<T> total = Vec<T>{};
    if constexpr (lanes != Lanes::support) {
#pragma GCC unroll 16
      for (int64_t k = 0; k < K; ++k) {
        const int64_t at = k * b.ld + v * W;
        const Vec<T> p = load(b.p + at);
        Vec<T> value = p * marginal[k] - p_log<shannon, T>(p, load(b.logits + at), order) * slope;
        if constexpr (known)
          if (b.log_prior) value -= p * load(b.log_prior + at) * tie;
        store(b.x + at, value);
        total += value;
      }
    }
#pragma GCC unroll 16
    for (int64_t k = 0; k < K; ++k) {
      const int64_t at = k * b.ld + v * W;
      const Vec<T> p = load(b.p + at);
      Vec<T> g = Vec<T>{};
      if constexpr (lanes != Lanes::support) g = (load(b.x + at) - p * total) * on_query;
      if constexpr (lanes != Lanes::query) g += (p - class_mask<T>(labels, k)) * on_support;
      store(b.x + at, g);
      acc[k] += g;
    }
  });
  for (int64_t k = 0; k < K; ++k) out[k] = reduce_add<T>(acc[k]);
}

// The weighted pass of TIM-GD: x_ik = g_ik, and its sums per block in place of those of q. `passes.state.factor` holds
// marginal_k of gradient_block.
template <int KT, bool known, class T>
void gradient_pass(PrimalPasses<T>& passes, int64_t classes, const GradientWeights<T>& weights) {
  ClassState<T>& s = passes.state;
  passes.weighted_pass([&](Block<T>& block, int64_t b, int64_t slot) {
    Vec<T>* accumulators = s.accumulators + slot * 2 * classes;
    T* sums = s.parts + (b * 4 + 2) * s.stride;
    if (weights.order == 1)
      gradient_block<KT, true, known>(classes, block, s.factor, weights, accumulators, sums);
    else
      gradient_block<KT, false, known>(classes, block, s.factor, weights, accumulators, sums);
  });
}

template <class T>
class Gd : public PrimalPasses<T> {
 public:
  using Base = PrimalPasses<T>;
  Gd(const Task& task, const GdParams& params, const T* scale, const Team& team, Arena& arena)
      : Base(task, sums_over_queries(params), params.tol > 0, false, scale, team, arena),
        params_(params),
        gd_(gd_coefficients<T>(params)),
        adam_(adam_coefficients<T>(params)) {
    const int64_t K = task.classes;
    first_ = arena.take<T>(K * this->pitch_);
    second_ = arena.take<T>(K * this->pitch_);
  }

  template <int KT, bool known>
  int64_t iterate(T* history) {
    const int64_t K = this->task_.classes;
    const int64_t planned = this->task_.has_queries() ? params_.iterations : 0;
    for (int64_t j = 0; j < K * this->pitch_; ++j) first_[j] = second_[j] = T(0);
    for (int64_t t = 0;; ++t) {
      pause(this->team_);
      probabilities<KT, known>(history != nullptr);
      if (history) terms(history + this->task_.history_terms() * t);
      if (params_.tol > 0 && t > 0 && change_of(this->state, this->blocks) <= T(params_.tol)) return t;
      if (t == planned) return t;
      gradient<KT, known>();
      adam(t + 1);
    }
  }

  // Loss terms and dL/dW at the weights that it was prepared with; whether that is finite.
  bool gradient_at(const TaskGradient<T>& given) {
    probabilities<0, false>(true);
    terms(given.terms);
    gradient<0, false>();
    run(this->team_, this->pieces_, [&](int64_t piece) { write_gradient(piece, given.gradient); });
    T nothing = T(0);
    for (int64_t piece = 0; piece < this->pieces_; ++piece) nothing += this->shift_parts_[piece];
    return nothing == T(0);
  }

 private:
  static Coefficients<T> sums_over_queries(const GdParams& params) {
    Coefficients<T> c = softmax_coefficients<T>(params.temperature);
    c.query = T(1);
    return c;
  }
  T* part(int64_t b, int which) { return this->state.parts + (b * 4 + which) * this->state.stride; }

  // log p, p and sum over Q of p_ik.
  template <int KT, bool known>
  void probabilities(bool with_loss) {
    auto& s = this->state;
    const int64_t K = this->task_.classes;
    this->softmax_pass([&](Block<T>& block, int64_t b, int64_t) {
      Sums<T> sums;
      sums.p = part(b, 0);
      softmax_block<KT, false, known>(K, this->c_, s.shift, block, sums);
      finish_block(K, block);
      if (with_loss) {
        if (gd_.order == 1)
          loss_block<true, T>(K, block, T(1), part(b, 1));
        else
          loss_block<false, T>(K, block, gd_.order, part(b, 1));
        if (block.log_prior) part(b, 3)[1] = prior_block(K, block);
      }
      if (params_.tol > 0) part(b, 3)[0] = change_block(K, block, this->before(b));
    });
    combine(part(0, 0), this->blocks, 4 * s.stride, K, s.p);
  }

  // log_a(phat_k / (K prior_k)); a phat of 0 counts as the smallest normal number.
  double log_marginal(int64_t k) const {
    const T smallest = Range<T>::smallest, sum = this->state.p[k] > smallest ? this->state.p[k] : smallest;
    const double share = double(sum) / double(this->task_.query);
    const double log_share = __builtin_log(share) + kLn2 * double(this->state.log_prior[k]);
    return log_of_order(log_share, double(gd_.order));
  }

  void terms(T* row) {
    const auto& s = this->state;
    const Task& task = this->task_;
    double cross = 0, conditional = 0, marginal = 0, with_priors = 0;
    for (int64_t b = 0; b < this->blocks; ++b) {
      cross += double(part(b, 1)[0]);
      conditional += double(part(b, 1)[1]);
      if (task.sample_log_prior) with_priors += double(part(b, 3)[1]);
    }
    row[0] = T(-kLn2 * cross / double(task.support));
    row[1] = row[2] = T(0);
    if (task.sample_log_prior) row[3] = T(0);
    if (!task.has_queries()) return;
    for (int64_t k = 0; k < task.classes; ++k)
      marginal -= double(s.p[k]) / double(task.query) * log_marginal(k);
    row[1] = T(marginal);
    row[2] = T(-conditional / double(task.query));
    if (task.sample_log_prior) row[3] = T(-kLn2 * with_priors / double(task.query));
  }

  // g and A_k = sum_i g_ik z_i; sum_i g_ik in s.q.
  template <int KT, bool known>
  void gradient() {
    auto& s = this->state;
    const Task& task = this->task_;
    const int64_t K = task.classes;
    for (int64_t k = 0; k < K; ++k)
      s.factor[k] = task.query > 0 ? T(params_.marginal_weight * double(gd_.order) * log_marginal(k)) : T(0);
    GradientWeights<T> weights;
    weights.support = gd_support_weight<T>(params_.lam, double(task.support));
    weights.query = gd_query_weight<T>(double(task.query));
    weights.alpha = gd_.alpha;
    weights.order = gd_.order;
    weights.sample_prior = gd_.sample_prior;
    gradient_pass<KT, known>(*this, K, weights);
    combine(part(0, 2), this->blocks, 4 * s.stride, K, s.q);
  }

  // dL/dw_k = tau (A_k - w_k sum_i g_ik) of a piece of columns; 0 if it is finite as its part.
  void write_gradient(int64_t piece, T* out) {
    constexpr int W = kWidth<T>;
    const int64_t K = this->task_.classes, d = this->task_.dim, first = piece * this->kPieceColumns,
                  end = first + this->kPieceColumns < d ? first + this->kPieceColumns : d;
    Vec<T>* const sums = this->column_ + piece * 2 * K;
    Vec<T> nothing = Vec<T>{};
    for (int64_t j = first; j < end; j += W) {
      this->gather_sums(j, sums);
      for (int64_t k = 0; k < K; ++k) {
        const Vec<T> w = load(this->weights_ + k * this->pitch_ + j);
        const Vec<T> g = (sums[k] - w * this->state.q[k]) * gd_.temperature;
        nothing += g * T(0);
        if (j + W <= d)
          store(out + k * d + j, g);
        else
          for (int64_t l = 0; j + l < d; ++l) out[k * d + j + l] = g[l];
      }
    }
    this->shift_parts_[piece] = reduce_add<T>(nothing);
  }

  // One step of Adam, as in torch.optim.Adam.
  void adam(int64_t step) {
    const auto& s = this->state;
    const T tau = gd_.temperature, add_first = adam_.add_first, keep_second = adam_.keep_second,
            add_second = adam_.add_second, eps = adam_.eps;
    const AdamStep<T> now = adam_step<T>(params_.lr, __builtin_pow(params_.adam_beta1, double(step)),
                                         __builtin_pow(params_.adam_beta2, double(step)));
    const T rate = now.rate, correction = now.correction;
    this->update_weights([&](int64_t k, int64_t at, Vec<T> w, Vec<T> sum) {
      const Vec<T> gradient = (sum - w * s.q[k]) * tau;
      const Vec<T> before = load(first_ + at);
      const Vec<T> first = before + (gradient - before) * add_first;
      const Vec<T> second = load(second_ + at) * keep_second + gradient * gradient * add_second;
      store(first_ + at, first);
      store(second_ + at, second);
      return w - first * rate / (vsqrt<T>(second) * correction + eps);
    });
  }

  const GdParams& params_;
  const GdCoefficients<T> gd_;
  const AdamCoefficients<T> adam_;
  T *first_, *second_;  // Adam's moments, [K, pitch]
};

template <class T>
void gd_solve(const Task& task, const GdParams& params, const T* scale, const TaskOutputs<T>& out,
              const Team& team, void* work) {
  Arena arena(work);
  Gd<T> form(task, params, scale, team, arena);
  form.prepare(task.weights);
  if (task.sample_log_prior)
    *out.iterations = form.template iterate<0, true>(out.history);
  else
    with_fixed_classes<5, 5>(task.classes, [&](auto kt) {
      *out.iterations = form.template iterate<decltype(kt)::value, false>(out.history);
    });
  form.finish(out);
}

template <class T>
bool gd_gradient(const Task& task, const GdParams& params, const T* scale, const TaskGradient<T>& at,
                 const Team& team, void* work) {
  Arena arena(work);
  Gd<T> form(task, params, scale, team, arena);
  form.prepare(at.weights);
  return form.gradient_at(at);
}

}  // namespace TIM_ISA
}  // namespace tim_ext
