// The parts of an iteration that work on one sample at a time, vectorised over samples. Both forms of the
// solver use them on blocks of samples; sums over samples leave a block as partial sums.
//
// KT is the number of classes where it is known at compile time (everything then stays in registers),
// 0 where it is not.

// Weights of the updates (DESIGN of TIM-ADM: c_S, c_Q and the exponents of the q-update).
template <class T>
struct Coefficients {
  T tau;
  T support, query;   // c_S = lam / (beta + alpha), c_Q = |S| / |Q|
  T power;            // 1 + alpha / beta
  T marginal_power;   // m / (m + beta)
};

template <class T>
Coefficients<T> coefficients(const AdmParams& p, const Task& task) {
  double query = task.query > 0 ? double(task.support) / double(task.query) : 0.0;
  return {T(p.temperature), T(p.lam / (p.beta + p.alpha)), T(query), T(1 + p.alpha / p.beta),
          T(p.marginal_weight / (p.marginal_weight + p.beta))};
}

constexpr int64_t kBlockLanes = 512;  // at most, in one block

// A block of samples, class-major: element (k, i) of an array at [k * ld + i].
template <class T>
struct Block {
  T* logits;  // in: z_i . (w_k - w_K) for k < K - 1; after softmax_block: log p_ik for all k
  T* p;       // p_ik
  T* x;       // p_ik^power, then the right-hand side X_ik of the w-update
  int64_t ld;
  const typename Simd<T>::Int* labels;  // class, kQuery or kPadding for every lane
  int64_t vectors;                      // the block has `vectors` * width lanes
  int64_t first_query;                  // vectors before this one hold no query
};

template <class T>
TIM_INLINE Vec<T> class_mask(IVec<T> labels, int64_t k) {
  return keep<T>(labels == typename Simd<T>::Int(k), splat<T>(1));
}
template <class T>
TIM_INLINE Vec<T> sample_weight(IVec<T> labels, const Coefficients<T>& c) {
  return keep<T>(labels >= 0, splat(c.support)) + keep<T>(labels == typename Simd<T>::Int(kQuery), splat(c.query));
}
template <class T>
TIM_INLINE IVec<T> load_labels(const Block<T>& b, int64_t v) {
  return *reinterpret_cast<const IVec<T>*>(b.labels + v * kWidth<T>);
}

// What softmax_block and q_block sum over the samples of a block.
template <class T>
struct Sums {
  T* p;        // [K] sum_i c_i p_ik, c_i = c_S on S and c_Q on Q
  T* power;    // [K] sum over Q of p_ik^power
  T* q;        // [K] sum over Q of q_ik
  T smallest;  // min over Q of power * log p_ik: whether p^power is safe from underflow
};

// log p, p and (where a block has queries and with_query) p^power, with their sums.
//   logit_ik - logit_iK = tau * z_i . (w_k - w_K) - shift_k,   shift_k = tau / 2 (||w_k||^2 - ||w_K||^2)
// Three sweeps instead of one: each has a short chain of dependent operations, so that vectors overlap.
template <int KT, bool with_query, class T>
TIM_INLINE void softmax_block(int64_t classes, const Coefficients<T>& c, const T* shift, const Block<T>& b,
                              Vec<T>* accumulators, Sums<T>& sums) {
  constexpr int W = kWidth<T>;
  const int64_t K = KT ? KT : classes;
  alignas(64) T inverse[kBlockLanes], log_total[kBlockLanes];

  // exp(l - max l), unnormalised, and their total.
  for (int64_t v = 0; v < b.vectors; ++v) {
    T* logits = b.logits + v * W;
    T* p = b.p + v * W;
    Vec<T> l[KT ? KT : 1];
    Vec<T> top = Vec<T>{};  // logit of class K
#pragma GCC unroll 16
    for (int64_t k = 0; k < K - 1; ++k) {
      Vec<T> value = load(logits + k * b.ld) * c.tau - shift[k];
      if constexpr (KT > 0)
        l[k] = value;
      else
        store(logits + k * b.ld, value);
      top = vmax(top, value);
    }
    if constexpr (KT == 0) store(logits + (K - 1) * b.ld, Vec<T>{});
    Vec<T> total = Vec<T>{};
#pragma GCC unroll 16
    for (int64_t k = 0; k < K; ++k) {
      Vec<T> value;
      if constexpr (KT > 0)
        value = k < K - 1 ? l[k] - top : -top;
      else
        value = load(logits + k * b.ld) - top;
      store(logits + k * b.ld, value);
      value = vexp<T>(value);
      store(p + k * b.ld, value);
      total += value;
    }
    store(inverse + v * W, total);
  }
  for (int64_t v = 0; v < b.vectors; ++v) {
    Vec<T> total = load(inverse + v * W);
    store(log_total + v * W, vlog<T>(total));
    store(inverse + v * W, T(1) / total);
  }

  Vec<T> fixed[KT ? 2 * KT : 1];
  Vec<T>* acc = KT ? fixed : accumulators;
  for (int64_t k = 0; k < 2 * K; ++k) acc[k] = Vec<T>{};
  Vec<T> smallest = Vec<T>{};
  auto normalise = [&](int64_t v, auto query_here) TIM_LAMBDA_INLINE {
    T* logits = b.logits + v * W;
    T* p = b.p + v * W;
    T* x = b.x + v * W;
    const IVec<T> labels = load_labels(b, v);
    const IVec<T> is_query = labels == typename Simd<T>::Int(kQuery);
    const Vec<T> weight = sample_weight<T>(labels, c);
    const Vec<T> inv = load(inverse + v * W), lt = load(log_total + v * W);
    Vec<T> least = Vec<T>{};
#pragma GCC unroll 16
    for (int64_t k = 0; k < K; ++k) {
      const Vec<T> value = load(p + k * b.ld) * inv, log_p = load(logits + k * b.ld) - lt;
      store(p + k * b.ld, value);
      store(logits + k * b.ld, log_p);
      acc[k] += weight * value;
      if constexpr (decltype(query_here)::value) {
        least = vmin(least, log_p);
        Vec<T> powered = vexp<T>(log_p * c.power);
        store(x + k * b.ld, powered);
        acc[K + k] += keep<T>(is_query, powered);
      }
    }
    if constexpr (decltype(query_here)::value) smallest = vmin(smallest, keep<T>(is_query, least));
  };
  const int64_t plain = with_query ? (b.first_query < b.vectors ? b.first_query : b.vectors) : b.vectors;
  for (int64_t v = 0; v < plain; ++v) normalise(v, std::false_type{});
  for (int64_t v = plain; v < b.vectors; ++v) normalise(v, std::true_type{});
  for (int64_t k = 0; k < K; ++k) {
    sums.p[k] = reduce_add<T>(acc[k]);
    if constexpr (with_query) sums.power[k] = reduce_add<T>(acc[K + k]);
  }
  sums.smallest = -reduce_max<T>(-smallest) * c.power;
}

// p and p^power from log p: what softmax_block left, without storing it for all samples.
template <class T>
TIM_INLINE void restore_block(int64_t classes, const Coefficients<T>& c, const Block<T>& b) {
  constexpr int W = kWidth<T>;
  for (int64_t k = 0; k < classes; ++k)
    for (int64_t v = 0; v < b.vectors; ++v) {
      Vec<T> log_p = load(b.logits + k * b.ld + v * W);
      store(b.p + k * b.ld + v * W, vexp<T>(log_p));
      if (v >= b.first_query) store(b.x + k * b.ld + v * W, vexp<T>(log_p * c.power));
    }
}

// q_ik and X_ik = c_i (t_ik - p_ik), t = y on S and q on Q.
//   exact = false: q_ik proportional to p_ik^power * factor_k,      factor_k = (sum over Q p_ik^power)^-e
//   exact = true:  q_ik = softmax_k(power log p_ik - factor_k),      factor_k = e log sum over Q p_ik^power
template <int KT, bool exact, class T>
TIM_INLINE void q_block(int64_t classes, const Coefficients<T>& c, const T* factor, const Block<T>& b,
                        Vec<T>* accumulators, Sums<T>& sums) {
  constexpr int W = kWidth<T>;
  const int64_t K = KT ? KT : classes;
  alignas(64) T inverse[kBlockLanes];
  const int64_t plain = b.first_query < b.vectors ? b.first_query : b.vectors;  // support only

  for (int64_t v = 0; v < plain; ++v) {
    const IVec<T> labels = load_labels(b, v);
#pragma GCC unroll 16
    for (int64_t k = 0; k < K; ++k) {
      const Vec<T> p = load(b.p + k * b.ld + v * W);
      store(b.x + k * b.ld + v * W, (class_mask<T>(labels, k) - p) * c.support);
    }
  }
  // q unnormalised, and 1 / total.
  for (int64_t v = plain; v < b.vectors; ++v) {
    const T* log_p = b.logits + v * W;
    T* x = b.x + v * W;
    Vec<T> total = Vec<T>{};
    Vec<T> top = splat<T>(-std::numeric_limits<T>::max());
    if constexpr (exact)
      for (int64_t k = 0; k < K; ++k) top = vmax(top, load(log_p + k * b.ld) * c.power - factor[k]);
#pragma GCC unroll 16
    for (int64_t k = 0; k < K; ++k) {
      Vec<T> value;
      if constexpr (exact)
        value = vexp<T>(load(log_p + k * b.ld) * c.power - factor[k] - top);
      else
        value = load(x + k * b.ld) * factor[k];
      if constexpr (exact) store(x + k * b.ld, value);
      total += value;
    }
    store(inverse + v * W, T(1) / total);
  }
  Vec<T> fixed[KT ? KT : 1];
  Vec<T>* acc = KT ? fixed : accumulators;
  for (int64_t k = 0; k < K; ++k) acc[k] = Vec<T>{};
  // A vector that holds the last support samples and the first queries takes both roles.
  auto right_hand_side = [&](int64_t v, auto mixed) TIM_LAMBDA_INLINE {
    constexpr bool is_mixed = decltype(mixed)::value;
    const T* p = b.p + v * W;
    T* x = b.x + v * W;
    const IVec<T> labels = load_labels(b, v);
    const Vec<T> weight = is_mixed ? sample_weight<T>(labels, c) : splat(c.query);
    Vec<T> inv = load(inverse + v * W);
    if constexpr (is_mixed) inv = keep<T>(labels == typename Simd<T>::Int(kQuery), inv);
#pragma GCC unroll 16
    for (int64_t k = 0; k < K; ++k) {
      Vec<T> value = load(x + k * b.ld) * inv;
      if constexpr (!exact) value = value * factor[k];
      acc[k] += value;
      if constexpr (is_mixed) value += class_mask<T>(labels, k);
      store(x + k * b.ld, weight * (value - load(p + k * b.ld)));
    }
  };
  // The first query vector may hold support lanes, the last one padding.
  for (int64_t v = plain; v < b.vectors; ++v) {
    if (v == plain || v == b.vectors - 1)
      right_hand_side(v, std::true_type{});
    else
      right_hand_side(v, std::false_type{});
  }
  for (int64_t k = 0; k < K; ++k) sums.q[k] = reduce_add<T>(acc[k]);
}

// For the exact q-update, where p^power may underflow: column maxima and shifted sums of power * log p.
//   phase 1: largest[k] = max over Q of power log p_ik;  phase 2: sum[k] = sum over Q exp(power log p_ik - largest_k)
template <int phase, class T>
TIM_INLINE void column_block(int64_t classes, const Coefficients<T>& c, const Block<T>& b, const T* largest, T* out) {
  constexpr int W = kWidth<T>;
  for (int64_t k = 0; k < classes; ++k) {
    Vec<T> acc = phase == 1 ? splat<T>(-std::numeric_limits<T>::max()) : Vec<T>{};
    for (int64_t v = b.first_query; v < b.vectors; ++v) {
      IVec<T> is_query = load_labels(b, v) == typename Simd<T>::Int(kQuery);
      Vec<T> exponent = load(b.logits + k * b.ld + v * W) * c.power;
      if constexpr (phase == 1)
        acc = vmax(acc, is_query ? exponent : splat<T>(-std::numeric_limits<T>::max()));
      else
        acc += keep<T>(is_query, vexp<T>(exponent - largest[k]));
    }
    out[k] = phase == 1 ? reduce_max<T>(acc) : reduce_add<T>(acc);
  }
}

// Sums for the loss terms, from log p and p: out[0] = sum over S of log p_i,y(i), out[1] = sum over Q, k of
// p log p, out[2 + k] = sum over Q of p_ik.
template <class T>
TIM_INLINE void history_block(int64_t classes, const Block<T>& b, T* out) {
  constexpr int W = kWidth<T>;
  Vec<T> cross = Vec<T>{}, conditional = Vec<T>{};
  for (int64_t k = 0; k < classes; ++k) {
    Vec<T> column = Vec<T>{};
    for (int64_t v = 0; v < b.vectors; ++v) {
      IVec<T> labels = load_labels(b, v);
      IVec<T> is_query = labels == typename Simd<T>::Int(kQuery);
      Vec<T> log_p = load(b.logits + k * b.ld + v * W), p = load(b.p + k * b.ld + v * W);
      cross += keep<T>(labels == typename Simd<T>::Int(k), log_p);
      conditional += keep<T>(is_query, p * log_p);
      column += keep<T>(is_query, p);
    }
    out[2 + k] = reduce_add<T>(column);
  }
  out[0] = reduce_add<T>(cross);
  out[1] = reduce_add<T>(conditional);
}

// max |p - before| over the real samples of a block; copies p into `before`.
template <class T>
TIM_INLINE T change_block(int64_t classes, const Block<T>& b, T* before) {
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

// factor_k = s_k^-e for q_block<exact = false>; s and factor hold K values padded to whole vectors.
template <class T>
TIM_INLINE void marginal_factors(int64_t classes, const Coefficients<T>& c, const T* s, T* factor) {
  for (int64_t k = 0; k < classes; k += kWidth<T>)
    store(factor + k, vexp<T>(vlog<T>(load(s + k)) * -c.marginal_power));
}
