// The parts of an iteration that work on one sample at a time, vectorised over samples. Both forms of the
// solver use them on blocks of samples; sums over samples leave a block as partial sums.
//
// KT is the number of classes where it is known at compile time (loops over classes are then unrolled), 0 where
// it is not. Logits and log-probabilities are in units of log 2 throughout: see vexp2.
#pragma once

#include "cpu/kernels/prelude.h"
#include "cpu/kernels/tiles-inl.h"
#include "cpu/kernels/vectors-inl.h"

namespace tim_ext {
namespace TIM_ISA {

// The coefficients of a task. The default weighs nothing.
template <class T>
struct Coefficients : AdmCoefficients<T> {
  T query;  // c_Q

  Coefficients() {
    this->tau = this->support = this->prior_power = this->marginal_power = query = T(0);
    this->relaxation = this->keep = T(1);
    this->power = T(1);
  }
};

template <class T>
Coefficients<T> coefficients(const AdmParams& p, const Task& task) {
  Coefficients<T> c;
  static_cast<AdmCoefficients<T>&>(c) = adm_coefficients<T>(p);
  c.query = query_weight<T>(double(task.support), double(task.query));
  return c;
}
// For softmax_block without p^power.
template <class T>
Coefficients<T> softmax_coefficients(double temperature) {
  Coefficients<T> c;
  c.tau = tau_of<T>(temperature);
  return c;
}

constexpr int64_t kBlockLanes = 512;  // at most, in one block

// Functions below take blocks and coefficients by value: a vector store may alias anything with an address, and the
// compiler would read the fields again after each.

// A block of samples, class-major: element (k, i) of an array at [k * ld + i].
template <class T>
struct Block {
  // z_i . (w_k - w_K) for k < K - 1; then l_ik = logit_ik - logit_iK; log p_ik for all k on demand
  T* logits = nullptr;
  T* log_total = nullptr;  // log sum_k exp(l_ik)
  T* inverse = nullptr;    // 1 / sum_k exp(l_ik)
  T* p = nullptr;  // exp(l_ik) for k < K - 1, so that p_ik = p * inverse; p_ik itself for all k on demand
  T* p_weight = nullptr;  // c_i / sum_k exp(l_ik)
  T* x = nullptr;         // r_ik, see log_r, then whatever weights the samples in the w-update
  T* q_weight = nullptr;  // share_i / sum_k of the unnormalised q_ik
  int64_t ld = 0;
  // Of every lane; what is given for single samples enters through these alone.
  const typename Simd<T>::Int* labels = nullptr;  // class, kQuery or kPadding
  const T* weight = nullptr;                      // c_i: c_S on S, c_Q share_i on Q, 0 on padding
  const T* share = nullptr;      // of queries 1, or the sample weight, scaled to a mean of 1; 0 elsewhere
  const T* log_prior = nullptr;  // log prior_ik of queries, 0 elsewhere, as logits; null: none
  int64_t vectors = 0;           // the block has `vectors` * width lanes
  int64_t first_query = 0;  // vectors before this one hold no query, those after it nothing else but padding
};

template <class T>
TIM_INLINE Vec<T> class_mask(IVec<T> labels, int64_t k) {
  return keep<T>(labels == typename Simd<T>::Int(k), splat<T>(1));
}
template <class T>
TIM_INLINE IVec<T> load_labels(Block<T> b, int64_t v) {
  return *reinterpret_cast<const IVec<T>*>(b.labels + v * kWidth<T>);
}
// Functions that run in every iteration have as a template argument, `known`, whether there may be a log_prior.
template <bool known, class T>
TIM_INLINE Vec<T> with_prior(Coefficients<T> c, Block<T> b, int64_t at, Vec<T> log_power) {
  if constexpr (known)
    if (b.log_prior) return log_power + load(b.log_prior + at) * c.prior_power;
  return log_power;
}
// log r_ik = power log p_ik + prior_power log prior_ik, after finish_block.
template <bool known, class T>
TIM_INLINE Vec<T> log_r(Coefficients<T> c, Block<T> b, int64_t at) {
  return with_prior<known>(c, b, at, load(b.logits + at) * c.power);
}

// What softmax_block and q_total_block sum over the samples of a block.
template <class T>
struct Sums {
  T* p = nullptr;      // [K] sum_i c_i p_ik, c_i = c_S on S and c_Q on Q
  T* power = nullptr;  // [K] sum over Q of r_ik: p_ik^power
  T* q = nullptr;      // [K] sum over Q of q_ik
  T smallest = T(0);   // a lower bound of power * log p_ik: whether p^power is safe from underflow
};

// log p_ik = l_ik - log_total_i in place of l_ik, and p_ik in place of exp(l_ik) unless it is made from log p later.
template <bool with_p = true, class T>
TIM_INLINE void finish_block(int64_t classes, Block<T> b) {
  constexpr int W = kWidth<T>;
  for (int64_t k = 0; k < classes; ++k)
    for (int64_t v = 0; v < b.vectors; ++v) {
      T* logits = b.logits + k * b.ld + v * W;
      [[maybe_unused]] T* p = b.p + k * b.ld + v * W;
      [[maybe_unused]] const Vec<T> inverse = with_p ? load(b.inverse + v * W) : Vec<T>{};
      const Vec<T> log_total = load(b.log_total + v * W);
      store(logits, k < classes - 1 ? load(logits) - log_total : -log_total);
      if constexpr (with_p) store(p, k < classes - 1 ? load(p) * inverse : inverse);
    }
}

// Which lanes of a vector hold queries.
enum class Lanes { support, query, mixed };

// f(v, constant Lanes) for every vector; padding counts as query.
template <class T, class F>
TIM_INLINE void for_vectors(Block<T> b, F&& f) {
  const int64_t first = b.first_query < b.vectors ? b.first_query : b.vectors;
  for (int64_t v = 0; v < first; ++v) f(v, std::integral_constant<Lanes, Lanes::support>{});
  if (first < b.vectors) f(first, std::integral_constant<Lanes, Lanes::mixed>{});
  for (int64_t v = first + 1; v < b.vectors; ++v) f(v, std::integral_constant<Lanes, Lanes::query>{});
}

// out[k] = sum over the vectors from `first` on of weight_i value_ik, k < NK.
template <int NK, class T>
TIM_INLINE void class_sums_tile(Block<T> b, const T* values, const T* weight, int64_t first, T* out) {
  constexpr int W = kWidth<T>;
  Vec<T> acc[NK] = {};
  for (int64_t v = first; v < b.vectors; ++v) {
    const Vec<T> w = load(weight + v * W);
#pragma GCC unroll 8
    for (int k = 0; k < NK; ++k) acc[k] += load(values + k * b.ld + v * W) * w;
  }
  reduce_adds<NK>(acc, out);
}
// The same for n classes; KT is n where it is known at compile time.
template <int KT, class T>
TIM_INLINE void class_sums(int64_t n, Block<T> b, const T* values, const T* weight, int64_t first, T* out) {
  if constexpr (KT > 0 && KT <= 8) {
    class_sums_tile<KT>(b, values, weight, first, out);
  } else {
    for_row_tiles<6>(n, [&](int64_t k0, auto nk) TIM_LAMBDA_INLINE {
      class_sums_tile<decltype(nk)::value>(b, values + k0 * b.ld, weight, first, out + k0);
    });
  }
}

// For extreme logits: log_total = max l + log sum exp(l - max l), inverse = exp(-log_total) but not below the
// range of T, and exp(l) replaced by p / inverse, so that p = exp(l) * inverse holds without overflow.
template <class T>
TIM_INLINE void shifted_softmax_block(int64_t classes, Block<T> b) {
  constexpr int W = kWidth<T>;
  for (int64_t v = 0; v < b.vectors; ++v) {
    auto l = [&](int64_t k) { return k < classes - 1 ? load(b.logits + k * b.ld + v * W) : Vec<T>{}; };
    Vec<T> top = Vec<T>{}, total = Vec<T>{};
    for (int64_t k = 0; k < classes; ++k) top = vmax(top, l(k));
    for (int64_t k = 0; k < classes; ++k) total += vexp2<T>(l(k) - top);
    const Vec<T> log_total = top + vlog2<T>(total), inverse = vexp2<T>(-log_total);
    store(b.log_total + v * W, log_total);
    store(b.inverse + v * W, inverse);
    store(b.p_weight + v * W, load(b.weight + v * W) * inverse);
    for (int64_t k = 0; k < classes - 1; ++k)
      store(b.p + k * b.ld + v * W, vexp2<T>(l(k) - log_total) / inverse);
  }
}

// exp(l), its sum over k and (with_query) r, with the sums over samples.
//   l_ik = tau * z_i . (w_k - w_K) - shift_k,   shift_k = tau / 2 (||w_k||^2 - ||w_K||^2),   l_iK = 0
// Several sweeps instead of one: each has a short chain of dependent operations, so that vectors overlap, and few values
// that must stay in registers.
template <int KT, bool with_query, bool known = false, class T>
TIM_INLINE void softmax_block(int64_t classes, Coefficients<T> c, const T* shift, Block<T> b, Sums<T>& sums) {
  constexpr int W = kWidth<T>;
  const int64_t K = KT ? KT : classes;

  // Without the usual shift by the largest logit: l_iK = 0 makes it needless in all but extreme cases.
  Vec<T> highest = Vec<T>{}, lowest = Vec<T>{};
  for (int64_t v = 0; v < b.vectors; ++v) {
    Vec<T> total = splat<T>(1);
#pragma GCC unroll 16
    for (int64_t k = 0; k < K - 1; ++k) {
      T* logits = b.logits + k * b.ld + v * W;
      const Vec<T> l = load(logits) * c.tau - shift[k];
      store(logits, l);
      highest = vmax(highest, l);
      lowest = vmin(lowest, l);
      const Vec<T> e = vexp2<T>(l);
      store(b.p + k * b.ld + v * W, e);
      total += e;
    }
    store(b.inverse + v * W, total);
  }
  Vec<T> longest = Vec<T>{};
  if (reduce_max<T>(highest) < -Simd<T>::exp2_min - 16) {
    for (int64_t v = 0; v < b.vectors; ++v) {
      const Vec<T> total = load(b.inverse + v * W), log_total = vlog2<T>(total), inverse = T(1) / total;
      store(b.log_total + v * W, log_total);
      store(b.inverse + v * W, inverse);
      store(b.p_weight + v * W, load(b.weight + v * W) * inverse);
      longest = vmax(longest, log_total);
    }
  } else {
    shifted_softmax_block(K, b);  // some exponential may have overflowed
    longest = splat<T>(std::numeric_limits<T>::max());
  }
  sums.smallest = (-reduce_max<T>(-lowest) - reduce_max<T>(longest)) * c.power;

  if (K > 1) class_sums<KT ? KT - 1 : 0>(K - 1, b, b.p, b.p_weight, 0, sums.p);
  Vec<T> last = Vec<T>{};
  for (int64_t v = 0; v < b.vectors; ++v) last += load(b.p_weight + v * W);
  sums.p[K - 1] = reduce_add<T>(last);
  if constexpr (with_query) {
    auto powers = [&](int64_t k, auto log_p) TIM_LAMBDA_INLINE {
      Vec<T> acc = Vec<T>{};
      for (int64_t v = b.first_query; v < b.vectors; ++v) {
        const int64_t at = k * b.ld + v * W;
        const Vec<T> r = vexp2<T>(with_prior<known>(c, b, at, log_p(at, v) * c.power));
        store(b.x + at, r);
        acc += r * load(b.share + v * W);
      }
      sums.power[k] = reduce_add<T>(acc);
    };
    for (int64_t k = 0; k < K - 1; ++k)
      powers(k, [&](int64_t at, int64_t v)
                    TIM_LAMBDA_INLINE { return load(b.logits + at) - load(b.log_total + v * W); });
    powers(K - 1, [&](int64_t, int64_t v) TIM_LAMBDA_INLINE { return -load(b.log_total + v * W); });
  }
}

// How the q-update finds p: from exp(l) and inverse, or, after finish_block or restore_block, as it is; and q:
//   not exact: q_ik proportional to r_ik * factor_k,   factor_k = (sum over Q r_ik)^-e
//   exact:     q_ik = softmax_k(log r_ik - factor_k),   factor_k = e log sum over Q r_ik
enum class From { softmax, finished, finished_exact };

// q_weight, and sum over Q of q_ik. Exact: the unnormalised q itself into x.
template <int KT, From from, bool known = false, class T>
TIM_INLINE void q_total_block(int64_t classes, Coefficients<T> c, const T* factor, Block<T> b,
                              Sums<T>& sums) {
  constexpr int W = kWidth<T>;
  constexpr bool exact = from == From::finished_exact;
  const int64_t K = KT ? KT : classes;
  for (int64_t v = b.first_query; v < b.vectors; ++v) {
    Vec<T> total = Vec<T>{};
    if constexpr (exact) {
      Vec<T> top = splat<T>(-std::numeric_limits<T>::max());
      for (int64_t k = 0; k < K; ++k) top = vmax(top, log_r<known>(c, b, k * b.ld + v * W) - factor[k]);
      for (int64_t k = 0; k < K; ++k) {
        const Vec<T> q = vexp2<T>(log_r<known>(c, b, k * b.ld + v * W) - factor[k] - top);
        store(b.x + k * b.ld + v * W, q);
        total += q;
      }
    } else {
#pragma GCC unroll 16
      for (int64_t k = 0; k < K; ++k) total += load(b.x + k * b.ld + v * W) * factor[k];
    }
    store(b.q_weight + v * W, load(b.share + v * W) / total);
  }
  class_sums<KT>(K, b, b.x, b.q_weight, b.first_query, sums.q);
  if constexpr (!exact)
    for (int64_t k = 0; k < K; ++k) sums.q[k] *= factor[k];
}

// X_ik = c_i (t_ik - p_ik), t = y on S and q on Q: consume(k, position in the block, X, whether k is the last class as a
// constant), that one first.
template <int KT, From from, class T, class F>
TIM_INLINE void q_apply_block(int64_t classes, Coefficients<T> c, const T* factor, Block<T> b, F&& consume) {
  constexpr int W = kWidth<T>;
  const int64_t K = KT ? KT : classes;
  for_vectors(b, [&](int64_t v, auto kind) TIM_LAMBDA_INLINE {
    constexpr Lanes lanes = decltype(kind)::value;
    const Vec<T> of_p = load((from == From::softmax ? b.p_weight : b.weight) + v * W);
    [[maybe_unused]] Vec<T> of_q = Vec<T>{}, of_y = Vec<T>{};
    [[maybe_unused]] IVec<T> labels = IVec<T>{};
    if constexpr (lanes != Lanes::support) of_q = load(b.q_weight + v * W) * c.query;
    if constexpr (lanes != Lanes::query) {
      of_y = load(b.weight + v * W);
      labels = load_labels(b, v);
    }
    auto one = [&](int64_t k, auto last) TIM_LAMBDA_INLINE {
      const int64_t at = k * b.ld + v * W;
      Vec<T> x = Vec<T>{};
      if constexpr (lanes != Lanes::query) x = keep<T>(labels == typename Simd<T>::Int(k), of_y);
      if constexpr (lanes != Lanes::support) {
        Vec<T> q = load(b.x + at);
        if constexpr (from != From::finished_exact) q *= factor[k];
        x = lanes == Lanes::query ? q * of_q : x + q * of_q;
      }
      constexpr bool one = from == From::softmax && decltype(last)::value;  // exp(l_iK)
      consume(k, v * W, one ? x - of_p : x - load(b.p + at) * of_p, last);
    };
    one(K - 1, std::true_type{});
#pragma GCC unroll 16
    for (int64_t k = 0; k < K - 1; ++k) one(k, std::false_type{});
  });
}

// p and r from log p, for blocks that keep nothing else.
template <bool known, class T>
TIM_INLINE void restore_block(int64_t classes, Coefficients<T> c, Block<T> b) {
  constexpr int W = kWidth<T>;
  for (int64_t k = 0; k < classes; ++k)
    for (int64_t v = 0; v < b.vectors; ++v) {
      const Vec<T> log_p = load(b.logits + k * b.ld + v * W);
      store(b.p + k * b.ld + v * W, vexp2<T>(log_p));
      if (v >= b.first_query)
        store(b.x + k * b.ld + v * W, vexp2<T>(with_prior<known>(c, b, k * b.ld + v * W, log_p * c.power)));
    }
}

// For the exact q-update, where r may underflow: column maxima and shifted sums of log r.
//   phase 1: largest[k] = max over Q of log r_ik;  phase 2: sum[k] = sum over Q exp(log r_ik - largest_k)
// Queries that count for nothing are left out of both.
template <int phase, bool known, class T>
TIM_INLINE void column_block(int64_t classes, Coefficients<T> c, Block<T> b, const T* largest, T* out) {
  constexpr int W = kWidth<T>;
  for (int64_t k = 0; k < classes; ++k) {
    Vec<T> acc = phase == 1 ? splat<T>(-std::numeric_limits<T>::max()) : Vec<T>{};
    for (int64_t v = b.first_query; v < b.vectors; ++v) {
      const Vec<T> share = load(b.share + v * W);
      const IVec<T> is_query = share > T(0);
      const Vec<T> exponent = log_r<known>(c, b, k * b.ld + v * W);
      if constexpr (phase == 1)
        acc = vmax(acc, is_query ? exponent : splat<T>(-std::numeric_limits<T>::max()));
      else
        acc += keep<T>(is_query, vexp2<T>(exponent - largest[k])) * share;
    }
    out[k] = phase == 1 ? reduce_max<T>(acc) : reduce_add<T>(acc);
  }
}

// Sums for the loss terms, after finish_block: out[0] = sum over S of log p_i,y(i), out[1] = sum over Q, k of
// p log p, out[3 + k] = sum over Q of p_ik.
template <class T>
TIM_INLINE void history_block(int64_t classes, Block<T> b, T* out) {
  constexpr int W = kWidth<T>;
  Vec<T> cross = Vec<T>{}, conditional = Vec<T>{};
  for (int64_t k = 0; k < classes; ++k) {
    Vec<T> column = Vec<T>{};
    for (int64_t v = 0; v < b.vectors; ++v) {
      const Vec<T> log_p = load(b.logits + k * b.ld + v * W);
      const Vec<T> counted = load(b.p + k * b.ld + v * W) * load(b.share + v * W);
      cross += keep<T>(load_labels(b, v) == typename Simd<T>::Int(k), log_p);
      conditional += counted * log_p;
      column += counted;
    }
    out[3 + k] = reduce_add<T>(column);
  }
  out[0] = reduce_add<T>(cross);
  out[1] = reduce_add<T>(conditional);
}

// out[k] = sum over Q of p_ik, after finish_block.
template <class T>
TIM_INLINE void query_block(int64_t classes, Block<T> b, T* out) {
  class_sums<0>(classes, b, b.p, b.share, b.first_query, out);
}

// sum over Q, k of p log prior, after finish_block of a block with sample priors.
template <class T>
TIM_INLINE T prior_block(int64_t classes, Block<T> b) {
  constexpr int W = kWidth<T>;
  Vec<T> sum = Vec<T>{};
  for (int64_t k = 0; k < classes; ++k)
    for (int64_t v = b.first_query; v < b.vectors; ++v) {
      const Vec<T> term = load(b.p + k * b.ld + v * W) * load(b.log_prior + k * b.ld + v * W);
      sum += term * load(b.share + v * W);
    }
  return reduce_add<T>(sum);
}

// max |p - before| over the real samples of a block after finish_block; copies p into `before`.
template <class T>
TIM_INLINE T change_block(int64_t classes, Block<T> b, T* before) {
  constexpr int W = kWidth<T>;
  Vec<T> largest = Vec<T>{};
  for (int64_t k = 0; k < classes; ++k)
    for (int64_t v = 0; v < b.vectors; ++v) {
      Vec<T> p = load(b.p + k * b.ld + v * W), d = p - load(before + k * b.ld + v * W);
      d = keep<T>(load_labels(b, v) != typename Simd<T>::Int(kPadding), vmax(d, -d));
      largest = vmax(largest, d);
      store(before + k * b.ld + v * W, p);
    }
  return reduce_max<T>(largest);
}

// factor_k = (s_k / (K prior_k))^-e = 2^-q_offset for the q-update, unless exact; arrays hold K values padded to whole
// vectors.
template <class T>
TIM_INLINE void marginal_factors(int64_t classes, Coefficients<T> c, const T* s, const T* log_prior,
                                 T* factor) {
  for (int64_t k = 0; k < classes; k += kWidth<T>)
    store(factor + k, vexp2<T>((vlog2<T>(load(s + k)) + load(log_prior + k)) * -c.marginal_power));
}

}  // namespace TIM_ISA
}  // namespace tim_ext
