// The steps of TIM-ADM as functions of their own, for one task or a piece of it. The features of a batch come from memory, and
// the arithmetic hides behind that: each row is read once for all classes, and the rows after those at work are fetched ahead.
#pragma once

#include "cpu/kernels/prelude.h"
#include "cpu/kernels/rows-inl.h"
#include "cpu/kernels/sample_major-inl.h"
#include "cpu/kernels/tiles-inl.h"
#include "cpu/kernels/workspace-inl.h"

namespace tim_ext {
namespace TIM_ISA {

constexpr int64_t kCacheLine = 64;
constexpr int64_t kRowsAhead = TIM_VEC_BYTES == 64 ? 4 : 8;  // that are fetched
// Rows whose weighted sums are added at a time. What is fetched meanwhile must find room in L1; with more classes than a tile
// has, the arithmetic outlasts the memory, and sums that are loaded and stored less often count for more.
constexpr int64_t sum_rows_of(int64_t classes) { return classes > 6 ? 32 : TIM_VEC_BYTES == 64 ? 4 : 16; }
// Sums in registers: 6 x 4 of 32, 6 x 2 of 16.
constexpr int kSumClasses = 6, kSumVectors = TIM_VEC_BYTES == 64 ? 4 : 2;

// A row of `dim` elements as vectors: whole ones, then one that ends with the row. What that one has in common with the vector
// before it is 0 in every array that weighs it; a row shorter than a vector is filled up with zeros.
template <class T>
struct RowVectors {
  static constexpr int W = kWidth<T>;
  int64_t dim, count;
  explicit RowVectors(int64_t d) : dim(d), count((d + W - 1) / W) {}
  int64_t at(int64_t v) const { return v + 1 < count || dim < W ? v * W : dim - W; }
  int64_t fresh(int64_t v) const {
    return v + 1 < count || dim < W ? 0 : count * W - dim;
  }  // its first new lane
  int64_t pitch() const { return count * W; }
  // f(v, first element) for every vector
  template <class F>
  TIM_INLINE void each(F&& f) const {
    for (int64_t v = 0; v < count - 1; ++v) f(v, v * W);
    f(count - 1, at(count - 1));
  }
};
// Rows at work and those to fetch, in registers: a vector store may alias whatever has an address.
template <class In, int NS>
struct RowPointers {
  const In* row[NS];
  const In* ahead[NS];
};
template <class T, bool is_short, class In>
TIM_INLINE Vec<T> load_at(const In* row, int64_t at, int64_t dim) {
  if constexpr (is_short) return load_row_tail<T>(row, dim);
  return load_row<T>(row + at);
}
template <class T>
TIM_INLINE void fetch(const T* p) {
  __builtin_prefetch(p, 0, 3);
}
// Once for each cache line of the vectors that a loop reads.
template <class T, class In>
TIM_INLINE bool starts_line(int64_t v) {
  constexpr int64_t bytes = kWidth<T> * int64_t(sizeof(In));
  return bytes >= kCacheLine || v % (kCacheLine / bytes) == 0;
}

// f(const In*) with the rows of a task in their own type.
template <class T, class Step, class F>
TIM_INLINE void with_task_rows(const Step& s, int64_t task, F&& f) {
  const int64_t at = task * s.layout.feature_task;
  if constexpr (sizeof(T) == 8) {
    f(static_cast<const double*>(s.features) + at);
  } else {
    if (s.layout.dtype == Dtype::f32) return f(static_cast<const float*>(s.features) + at);
    if (s.layout.dtype == Dtype::f16) return f(static_cast<const Half*>(s.features) + at);
    f(static_cast<const BFloat16*>(s.features) + at);
  }
}

// Class of a support sample (K: beyond the classes), kQuery or kPadding for n samples, kPadding up to a whole vector.
template <class T, class Step>
void take_labels(const Step& s, int64_t task, int64_t i0, int64_t n, typename Simd<T>::Int* out) {
  using Int = typename Simd<T>::Int;
  const int64_t* labels = s.labels + task * s.layout.label_task + i0 * s.layout.label;
  const int64_t K = s.shape.classes;
  for (int64_t i = 0; i < n; ++i) {
    const int64_t label = labels[i * s.layout.label];
    out[i] = Int(label >= K ? K : label >= kQuery ? label : kPadding);
  }
  for (int64_t i = n; i % kWidth<T> != 0; ++i) out[i] = Int(kPadding);
}
template <class T>
TIM_INLINE IVec<T> labels_at(const typename Simd<T>::Int* labels, int64_t i) {
  return *reinterpret_cast<const IVec<T>*>(labels + i);
}

// distance_softmax -----------------------------------------------------------------------------------

// w_k - w_K for k < K - 1, and w_K, as RowVectors [K][pitch].
template <class T>
void class_differences(const T* weights, int64_t row, int64_t K, RowVectors<T> vectors, T* out) {
  const int64_t pitch = vectors.pitch();
  const T* const last = weights + (K - 1) * row;
  for (int64_t k = 0; k < K; ++k)
    for (int64_t v = 0; v < vectors.count; ++v) {
      T lane[kWidth<T>] = {};
      const int64_t at = vectors.at(v);
      T* const o = out + k * pitch + v * kWidth<T>;
      if (vectors.fresh(v) == 0 && at + kWidth<T> <= vectors.dim) {
        const Vec<T> w = load(weights + k * row + at);
        store(o, k < K - 1 ? w - load(last + at) : w);
        continue;
      }
      for (int64_t l = vectors.fresh(v); l < kWidth<T> && at + l < vectors.dim; ++l)
        lane[l] = weights[k * row + at + l] - (k < K - 1 ? last[at + l] : T(0));
      store(o, load(lane));
    }
}

// out[k * ld + s] = (x_s - w_K) . (w_k - w_K) for NR classes and NS rows.
template <class T, int NR, int NS, bool is_short, bool fetches, class In>
TIM_INLINE void dot_tile(RowPointers<In, NS> x, const T* difference, const T* last, RowVectors<T> vectors,
                         T* out, int64_t ld) {
  constexpr int W = kWidth<T>;
  const int64_t pitch = vectors.pitch();
  Vec<T> acc[NR][NS] = {};
  vectors.each([&](int64_t v, int64_t at) TIM_LAMBDA_INLINE {
    const Vec<T> shared = load(last + v * W);
    Vec<T> xv[NS];
#pragma GCC unroll 8
    for (int s = 0; s < NS; ++s) xv[s] = load_at<T, is_short>(x.row[s], at, vectors.dim) - shared;
    if (fetches && starts_line<T, In>(v))
#pragma GCC unroll 8
      for (int s = 0; s < NS; ++s) fetch(x.ahead[s] + at);
#pragma GCC unroll 8
    for (int r = 0; r < NR; ++r) {
      Vec<T> d = load(difference + r * pitch + v * W);
      in_register(d);
#pragma GCC unroll 8
      for (int s = 0; s < NS; ++s) acc[r][s] += xv[s] * d;
    }
  });
#pragma GCC unroll 8
  for (int r = 0; r < NR; ++r) {
    if constexpr (W >= 4) {
      const Vec<T> sums =
          reduce_add4<T>(acc[r][0], acc[r][NS > 1 ? 1 : 0], acc[r][NS > 2 ? 2 : 0], acc[r][NS > 3 ? 3 : 0]);
#pragma GCC unroll 4
      for (int s = 0; s < NS; ++s) out[r * ld + s] = sums[s];
    } else {
      for (int s = 0; s < NS; ++s) out[r * ld + s] = reduce_add<T>(acc[r][s]);
    }
  }
}

// f(first row, pointers to up to Rows rows) for n rows; `next` is the row that is read after them.
template <int Rows, class In, class F>
TIM_INLINE void for_rows(const In* rows, int64_t row, int64_t n, const In* next, F f) {
  for (int64_t i = 0; i < n; i += Rows)
    with_constant<Rows>(int(n - i < Rows ? n - i : Rows), [&](auto ns) {
      RowPointers<In, decltype(ns)::value> x;
      for (int64_t s = 0; s < decltype(ns)::value; ++s) {
        const int64_t j = i + s + kRowsAhead;
        x.row[s] = rows + (i + s) * row;
        x.ahead[s] = j < n ? rows + j * row : next + (j - n) * row;
      }
      f(i, x);
    });
}

// logits [K - 1][ld] = (z_i - w_K) . (w_k - w_K) for n rows; `next` is the row that is read after them.
template <bool is_short, class T, class In>
void centred_dots(const In* rows, int64_t row, int64_t n, const In* next, const T* difference, int64_t K,
                  RowVectors<T> vectors, T* logits, int64_t ld) {
  const T* const last = difference + (K - 1) * vectors.pitch();
  for_rows<kWideVectors>(rows, row, n, next, [&](int64_t i, auto x) {
    constexpr int NS = sizeof(x.row) / sizeof(x.row[0]);
    for_row_tiles<kWideRows>(K - 1, [&](int64_t k, auto nr) {
      constexpr int NR = decltype(nr)::value;
      const T* const d = difference + k * vectors.pitch();
      if (k == 0)
        dot_tile<T, NR, NS, is_short, true>(x, d, last, vectors, logits + k * ld + i, ld);
      else
        dot_tile<T, NR, NS, is_short, false>(x, d, last, vectors, logits + k * ld + i, ld);
    });
  });
}

// In place of the products above p_ik, and into log_p its natural logarithm:
//   l_ik = tau (z_i - w_K) . (w_k - w_K) - shift_k,   l_iK = 0
template <class T>
void softmax_rows(int64_t K, T tau, const T* shift, int64_t n, T* p, T* log_p, int64_t ld) {
  constexpr int W = kWidth<T>;
  for (int64_t i = 0; i < n; i += W) {
    Vec<T> top = Vec<T>{}, total = Vec<T>{};
    for (int64_t k = 0; k < K; ++k) {
      const Vec<T> l = k < K - 1 ? load(p + k * ld + i) * tau - shift[k] : Vec<T>{};
      store(log_p + k * ld + i, l);
      top = vmax(top, l);
    }
    for (int64_t k = 0; k < K; ++k) {
      const Vec<T> l = load(log_p + k * ld + i) - top, e = vexp2<T>(l);
      store(log_p + k * ld + i, l);
      store(p + k * ld + i, e);
      total += e;
    }
    const Vec<T> log_total = vlog2<T>(total), inverse = T(1) / total;
    for (int64_t k = 0; k < K; ++k) {
      store(p + k * ld + i, load(p + k * ld + i) * inverse);
      store(log_p + k * ld + i, (load(log_p + k * ld + i) - log_total) * T(kLn2));
    }
  }
}

// log p and p of the samples i0 .. i0 + n - 1 (n <= kStepRows) of a task.
template <class T>
void distance_softmax_step(const DistanceSoftmax<T>& s, int64_t task, int64_t i0, int64_t n, void* work) {
  Arena arena(work);
  const int64_t K = s.shape.classes, N = s.shape.samples;
  const RowVectors<T> vectors(s.shape.dim);
  T* difference = arena.take<T>(K * vectors.pitch());
  T* shift = arena.take<T>(K);
  T* p = arena.take<T>(K * kStepRows);
  T* log_p = arena.take<T>(K * kStepRows);
  class_differences(s.weights + task * s.layout.weight_task, s.layout.weight_row, K, vectors, difference);
  for (int64_t k = 0; k < K - 1; ++k)
    shift[k] = s.c.tau / 2 * squared_norm<T>(difference + k * vectors.pitch(), vectors.pitch());
  for (int64_t k = 0; k < K; ++k) store(p + k * kStepRows + (n - 1) / kWidth<T> * kWidth<T>, Vec<T>{});
  with_task_rows<T>(s, task, [&](auto* rows) {
    const int64_t row = s.layout.feature_row;
    auto* const next = i0 + n < N ? rows + (i0 + n) * row : rows + s.layout.feature_task;
    if (vectors.dim < kWidth<T>)
      centred_dots<true>(rows + i0 * row, row, n, next, difference, K, vectors, p, kStepRows);
    else
      centred_dots<false>(rows + i0 * row, row, n, next, difference, K, vectors, p, kStepRows);
  });
  softmax_rows(K, s.c.tau, shift, n, p, log_p, kStepRows);
  const int64_t at = (task * N + i0) * K;
  to_sample_major(p, kStepRows, n, K, s.probs + at);
  to_sample_major(log_p, kStepRows, n, K, s.log_probs + at);
}

// Pieces of a task that are summed apart -------------------------------------------------------------

// A task whose sums take more than one piece of kStepRows samples is cut into up to kStepChunks runs of pieces, which threads
// share: by its shape alone, and they are added in order, so that threads change no bit.
constexpr int64_t kStepChunks = 16;
inline int64_t step_pieces(int64_t samples) { return (samples + kStepRows - 1) / kStepRows; }
inline int64_t step_chunks(const StepShape& shape) {  // of no fewer samples than classes: sums are [K, d]
  const int64_t least = shape.classes > kStepRows ? shape.classes : kStepRows, most = shape.samples / least;
  const int64_t some = most < kStepChunks ? most : kStepChunks;
  return some < 1 ? 1 : some;
}
// f(chunk, first sample, count) for every piece, those of a chunk in order.
template <class F>
TIM_INLINE void for_step_pieces(const StepShape& shape, const Team& team, F f) {
  const int64_t samples = shape.samples, pieces = step_pieces(samples), chunks = step_chunks(shape);
  run(team, chunks, [&](int64_t chunk) {
    for (int64_t piece = pieces * chunk / chunks; piece < pieces * (chunk + 1) / chunks; ++piece) {
      const int64_t first = piece * kStepRows;
      f(chunk, first, samples - first < kStepRows ? samples - first : kStepRows);
    }
  });
}

// q_update -------------------------------------------------------------------------------------------

// log2 r_ik between these bounds: then r, its sums and r_ik g_k <= max(1, sum_i r_ik) stay in the range of T, and the largest
// r_ik g_k of a row does not vanish.
template <class T>
constexpr T kLeastPlain = sizeof(T) == 4 ? T(-100) : T(-900);
constexpr int kMostPlain = 1;

template <class T>
struct QChunk {
  T* block;  // [K][kStepRows]
  typename Simd<T>::Int* labels;
  double* sum;  // [K]
  T* largest;   // [K]
  T lowest;
};

// q_ik = r_ik g_k / sum_k of that on queries, r = p^power, g_k = (sum over Q of r_ik)^-e; where r may leave the range,
// q_ik = softmax_k(log r_ik - e log sum over Q of r_ik). Logarithms are to base 2.
template <class T>
class QStep {
 public:
  static constexpr int W = kWidth<T>;
  QStep(const QUpdate<T>& s, int64_t task, Arena& arena) : s_(s), task_(task) {
    total_ = arena.take<double>(K);
    factor_ = arena.take<T>(round_up(K, W));
    largest_ = arena.take<T>(K);
    for (int64_t c = 0; c < step_chunks(s_.shape); ++c) {
      chunks_[c].block = arena.take<T>(K * kStepRows);
      chunks_[c].labels = arena.take<typename Simd<T>::Int>(kStepRows);
      chunks_[c].sum = arena.take<double>(K);
      chunks_[c].largest = arena.take<T>(K);
    }
  }

  void run(const Team& team) {
    const bool one = step_pieces(s_.shape.samples) == 1;  // then it stays in the block
    sum_up<false>(team, !one);
    T highest = -std::numeric_limits<T>::max(), lowest = T(0);
    for (int64_t k = 0; k < K; ++k) highest = largest_[k] > highest ? largest_[k] : highest;
    for (int64_t c = 0; c < step_chunks(s_.shape); ++c)
      lowest = chunks_[c].lowest < lowest ? chunks_[c].lowest : lowest;
    if (highest <= T(kMostPlain) && lowest >= kLeastPlain<T>) {
      plain_factors();
      return apply(team, [&](QChunk<T>& c, int64_t i0, int64_t n) {
        if (!one) to_class_major(s_.assignments + at(i0), n, K, c.block, kStepRows);
        plain_rows(c, n);
      });
    }
    sum_up<true>(team, false);
    for (int64_t k = 0; k < K; ++k) factor_[k] = offset(k, largest_[k]);
    apply(team, [&](QChunk<T>& c, int64_t i0, int64_t n) {
      to_class_major(s_.log_probs + at(i0), n, K, c.block, kStepRows);
      exact_rows(c, n);
    });
  }

 private:
  int64_t at(int64_t i0) const { return (task_ * s_.shape.samples + i0) * K; }
  T offset(int64_t k, T largest) const {
    return q_offset(s_.c, T(double(largest) + __builtin_log2(total_[k])), T(0));
  }

  // g_k = 2^-offset_k: `marginal_factors` of sums alone. Without a query any factor will do.
  void plain_factors() {
    for (int64_t k = 0; k < K; k += W) store(factor_ + k, splat<T>(1));
    for (int64_t k = 0; k < K; ++k)
      if (total_[k] > 0) factor_[k] = T(total_[k]);
    for (int64_t k = 0; k < K; k += W)
      store(factor_ + k, vexp2<T>(vlog2<T>(load(factor_ + k)) * -s_.c.marginal_power));
  }

  // r in the block, or (shifted) r 2^-largest_k, and its sums over the queries; not shifted: the largest log r, too.
  template <bool shifted>
  void sum_up(const Team& team, bool keep_all) {
    for (int64_t c = 0; c < step_chunks(s_.shape); ++c) {
      chunks_[c].lowest = T(0);
      for (int64_t k = 0; k < K; ++k) {
        chunks_[c].sum[k] = 0;
        chunks_[c].largest[k] = -std::numeric_limits<T>::max();
      }
    }
    for_step_pieces(s_.shape, team, [&](int64_t number, int64_t i0, int64_t n) {
      QChunk<T>& c = chunks_[number];
      take_labels<T>(s_, task_, i0, n, c.labels);
      to_class_major(s_.log_probs + at(i0), n, K, c.block, kStepRows);
      sum_rows<shifted>(c, n);
      if (keep_all) to_sample_major(c.block, kStepRows, n, K, s_.assignments + at(i0));
    });
    for (int64_t k = 0; k < K; ++k) {
      total_[k] = 0;
      if (!shifted) largest_[k] = -std::numeric_limits<T>::max();
      for (int64_t c = 0; c < step_chunks(s_.shape); ++c) {
        total_[k] += chunks_[c].sum[k];
        if (!shifted && chunks_[c].largest[k] > largest_[k]) largest_[k] = chunks_[c].largest[k];
      }
    }
  }
  template <bool shifted>
  void sum_rows(QChunk<T>& c, int64_t n) {
    const T scale = s_.c.power * T(kLog2e);
    Vec<T> lowest = splat(c.lowest);
    for (int64_t k = 0; k < K; ++k) {
      Vec<T> sum = Vec<T>{}, largest = splat(-std::numeric_limits<T>::max());
      for (int64_t i = 0; i < n; i += W) {
        T* const place = c.block + k * kStepRows + i;
        const IVec<T> is_query = labels_at<T>(c.labels, i) == typename Simd<T>::Int(kQuery);
        const Vec<T> log_r = load(place) * scale;
        if constexpr (!shifted) {
          largest = vmax(largest, is_query ? log_r : largest);
          lowest = vmin(lowest, keep<T>(is_query, log_r));
        }
        const Vec<T> r = keep<T>(is_query, vexp2<T>(shifted ? log_r - largest_[k] : log_r));
        store(place, r);
        sum += r;
      }
      c.sum[k] += double(reduce_add<T>(sum));
      if constexpr (!shifted) c.largest[k] = max_of(c.largest[k], reduce_max<T>(largest));
    }
    if constexpr (!shifted) c.lowest = -reduce_max<T>(-lowest);
  }
  static T max_of(T a, T b) { return a > b ? a : b; }

  template <class F>
  void apply(const Team& team, F f) {
    const bool again = step_pieces(s_.shape.samples) > 1;
    for_step_pieces(s_.shape, team, [&](int64_t number, int64_t i0, int64_t n) {
      QChunk<T>& c = chunks_[number];
      if (again) take_labels<T>(s_, task_, i0, n, c.labels);
      f(c, i0, n);
      to_sample_major(c.block, kStepRows, n, K, s_.assignments + at(i0));
    });
  }
  // q on queries, y elsewhere, from the unnormalised q in the block and their sums.
  void finish_rows(QChunk<T>& c, int64_t i, Vec<T> total) {
    const IVec<T> labels = labels_at<T>(c.labels, i);
    const Vec<T> inverse = keep<T>(labels == typename Simd<T>::Int(kQuery), T(1) / total);
    for (int64_t k = 0; k < K; ++k) {
      T* const place = c.block + k * kStepRows + i;
      store(place, keep<T>(labels < 0, load(place) * inverse) +
                       keep<T>(labels == typename Simd<T>::Int(k), splat<T>(1)));
    }
  }
  void plain_rows(QChunk<T>& c, int64_t n) {
    for (int64_t i = 0; i < n; i += W) {
      Vec<T> total = Vec<T>{};
      for (int64_t k = 0; k < K; ++k) {
        T* const place = c.block + k * kStepRows + i;
        const Vec<T> q = load(place) * factor_[k];
        store(place, q);
        total += q;
      }
      finish_rows(c, i, total);
    }
  }
  void exact_rows(QChunk<T>& c, int64_t n) {
    const T scale = s_.c.power * T(kLog2e);
    for (int64_t i = 0; i < n; i += W) {
      Vec<T> top = splat(-std::numeric_limits<T>::max()), total = Vec<T>{};
      for (int64_t k = 0; k < K; ++k) {
        T* const place = c.block + k * kStepRows + i;
        const Vec<T> log_q = load(place) * scale - factor_[k];
        store(place, log_q);
        top = vmax(top, log_q);
      }
      for (int64_t k = 0; k < K; ++k) {
        T* const place = c.block + k * kStepRows + i;
        const Vec<T> q = vexp2<T>(load(place) - top);
        store(place, q);
        total += q;
      }
      finish_rows(c, i, total);
    }
  }

  const QUpdate<T>& s_;
  const int64_t task_, K = s_.shape.classes;
  double* total_;         // [K] sum over Q of r_ik
  T *factor_, *largest_;  // [K]
  QChunk<T> chunks_[kStepChunks];
};

template <class T>
void q_update_step(const QUpdate<T>& s, int64_t task, const Team& team, void* work) {
  Arena arena(work);
  QStep<T>(s, task, arena).run(team);
}

// w_update -------------------------------------------------------------------------------------------

template <class T>
struct WChunk {
  T* sums;          // sum_i c_i (t_ik - p_ik) z_i, [vectors of a row][K][W]
  T *coef, *other;  // [K][kStepRows]
  typename Simd<T>::Int* labels;
  double *p, *target;  // [K] sum_i c_i p_ik, sum_i c_i t_ik
};

// sums += sum_s coef[k * kStepRows + s] x_s, laid out as [vectors of a row][K][W], for NR classes, NV vectors from v0 on and
// `rows` rows.
template <class T, int NR, int NV, bool is_short, bool fetches, class In>
TIM_INLINE void sum_tile(const In* x, int64_t row, int64_t rows, const T* coef, int64_t K,
                         RowVectors<T> vectors, int64_t v0, T* sums, int64_t following) {
  constexpr int W = kWidth<T>;
  Vec<T> acc[NR][NV];
  const int64_t last = vectors.at(v0 + NV - 1);
#pragma GCC unroll 8
  for (int r = 0; r < NR; ++r)
#pragma GCC unroll 8
    for (int v = 0; v < NV; ++v) acc[r][v] = load(sums + ((v0 + v) * K + r) * W);
  for (int64_t s = 0; s < rows; ++s) {
    Vec<T> xv[NV];
#pragma GCC unroll 8
    for (int v = 0; v < NV; ++v) {
      const int64_t at = v < NV - 1 ? (v0 + v) * W : last;
      xv[v] = load_at<T, is_short>(x, at, vectors.dim);
      if (fetches && starts_line<T, In>(v)) fetch(x + following + at);
    }
    x += row;
#pragma GCC unroll 8
    for (int r = 0; r < NR; ++r) {
      Vec<T> b = splat<T>(coef[r * kStepRows + s]);
      in_register(b);
#pragma GCC unroll 8
      for (int v = 0; v < NV; ++v) acc[r][v] += xv[v] * b;
    }
  }
#pragma GCC unroll 8
  for (int r = 0; r < NR; ++r)
#pragma GCC unroll 8
    for (int v = 0; v < NV; ++v) store(sums + ((v0 + v) * K + r) * W, acc[r][v]);
}

// sums += sum_i coef[k][i] x_i for n rows; `next` is the row that is read after them.
template <bool is_short, class T, class In>
void weighted_sums(const In* rows, int64_t row, int64_t n, const In* next, const T* coef, int64_t K,
                   RowVectors<T> vectors, T* sums) {
  const int64_t step = sum_rows_of(K);
  for (int64_t i = 0; i < n; i += step) {
    const int64_t count = n - i < step ? n - i : step;
    const int64_t ahead = i + count < n ? count * row : next - (rows + i * row);
    for (int64_t v = 0; v < vectors.count; v += kSumVectors)
      with_constant<kSumVectors>(
          int(vectors.count - v < kSumVectors ? vectors.count - v : kSumVectors), [&](auto nv) {
            constexpr int NV = decltype(nv)::value;
            for_row_tiles<kSumClasses>(K, [&](int64_t k, auto nr) {
              constexpr int NR = decltype(nr)::value;
              const T* const c = coef + k * kStepRows + i;
              T* const to = sums + k * kWidth<T>;
              if (k == 0)
                sum_tile<T, NR, NV, is_short, true>(rows + i * row, row, count, c, K, vectors, v, to, ahead);
              else
                sum_tile<T, NR, NV, is_short, false>(rows + i * row, row, count, c, K, vectors, v, to, ahead);
            });
          });
  }
}

template <class T>
class WStep {
 public:
  static constexpr int W = kWidth<T>;
  WStep(const WUpdate<T>& s, int64_t task, Arena& arena) : s_(s), task_(task), vectors_(s.shape.dim) {
    for (int64_t c = 0; c < step_chunks(s.shape); ++c) {
      chunks_[c].sums = arena.take<T>(K * vectors_.pitch());
      chunks_[c].coef = arena.take<T>(K * kStepRows);
      chunks_[c].other = arena.take<T>(K * kStepRows);
      chunks_[c].labels = arena.take<typename Simd<T>::Int>(kStepRows);
      chunks_[c].p = arena.take<double>(K);
      chunks_[c].target = arena.take<double>(K);
    }
  }

  void run(const Team& team) {
    const int64_t N = s_.shape.samples, chunks = step_chunks(s_.shape);
    int64_t support = 0, query = 0;
    const int64_t* const labels = s_.labels + task_ * s_.layout.label_task;
    for (int64_t i = 0; i < N; ++i) {
      support += labels[i * s_.layout.label] >= 0;
      query += labels[i * s_.layout.label] == kQuery;
    }
    on_query_ = query_weight<T>(double(support), double(query));
    for (int64_t c = 0; c < chunks; ++c) {
      for (int64_t j = 0; j < K * vectors_.pitch(); ++j) chunks_[c].sums[j] = T(0);
      for (int64_t k = 0; k < K; ++k) chunks_[c].p[k] = chunks_[c].target[k] = 0;
    }
    for_step_pieces(s_.shape, team,
                    [&](int64_t chunk, int64_t i0, int64_t n) { sum_up(chunks_[chunk], i0, n); });
    for (int64_t c = 1; c < chunks; ++c) {
      for (int64_t j = 0; j < K * vectors_.pitch(); ++j) chunks_[0].sums[j] += chunks_[c].sums[j];
      for (int64_t k = 0; k < K; ++k) {
        chunks_[0].p[k] += chunks_[c].p[k];
        chunks_[0].target[k] += chunks_[c].target[k];
      }
    }
    for (int64_t k = 0; k < K; ++k) finish(k);
  }

 private:
  void sum_up(WChunk<T>& c, int64_t i0, int64_t n) {
    const int64_t N = s_.shape.samples, at = (task_ * N + i0) * K;
    take_labels<T>(s_, task_, i0, n, c.labels);
    to_class_major(s_.assignments + at, n, K, c.coef, kStepRows);
    to_class_major(s_.probs + at, n, K, c.other, kStepRows);
    for (int64_t k = 0; k < K; ++k) {
      Vec<T> sum_p = Vec<T>{}, sum_t = Vec<T>{};
      for (int64_t i = 0; i < n; i += W) {
        const IVec<T> labels = labels_at<T>(c.labels, i);
        const Vec<T> weight = keep<T>(labels >= 0, splat(s_.c.support)) +
                              keep<T>(labels == typename Simd<T>::Int(kQuery), splat(on_query_));
        const IVec<T> counts = weight != T(0);  // whatever stands at other samples
        const Vec<T> p = keep<T>(counts, weight * load(c.other + k * kStepRows + i));
        const Vec<T> t = keep<T>(counts, weight * load(c.coef + k * kStepRows + i));
        store(c.coef + k * kStepRows + i, t - p);
        sum_p += p;
        sum_t += t;
      }
      c.p[k] += double(reduce_add<T>(sum_p));
      c.target[k] += double(reduce_add<T>(sum_t));
    }
    with_task_rows<T>(s_, task_, [&](auto* rows) {
      const int64_t row = s_.layout.feature_row;
      auto* const next = i0 + n < N ? rows + (i0 + n) * row : rows + s_.layout.feature_task;
      if (vectors_.dim < W)
        weighted_sums<true>(rows + i0 * row, row, n, next, c.coef, K, vectors_, c.sums);
      else
        weighted_sums<false>(rows + i0 * row, row, n, next, c.coef, K, vectors_, c.sums);
    });
  }
  // `stepped` on vectors
  void finish(int64_t k) {
    const T mass = T(chunks_[0].target[k]), p = T(chunks_[0].p[k]), inverse = T(1) / mass;
    const T* const w = s_.weights + task_ * s_.layout.weight_task + k * s_.layout.weight_row;
    T* const out = s_.out + (task_ * K + k) * vectors_.dim;
    const T* const sum = chunks_[0].sums + k * W;
    const bool some = mass >= Range<T>::smallest;
    for (int64_t v = 0; v < vectors_.count; ++v) {
      const int64_t at = vectors_.at(v), fresh = vectors_.fresh(v);
      if (fresh == 0 && at + W <= vectors_.dim) {
        store(out + at, some ? (load(sum + v * K * W) + load(w + at) * p) * inverse : load(w + at));
        continue;
      }
      for (int64_t l = fresh; l < W && at + l < vectors_.dim; ++l)
        out[at + l] = some ? (sum[v * K * W + l] + w[at + l] * p) * inverse : w[at + l];
    }
  }

  const WUpdate<T>& s_;
  const int64_t task_, K = s_.shape.classes;
  const RowVectors<T> vectors_;
  T on_query_ = T(0);
  WChunk<T> chunks_[kStepChunks];
};

template <class T>
void w_update_step(const WUpdate<T>& s, int64_t task, const Team& team, void* work) {
  Arena arena(work);
  WStep<T>(s, task, arena).run(team);
}

inline int64_t step_workspace(const StepShape& shape) {
  const int64_t K = shape.classes, chunks = step_chunks(shape);
  const int64_t one = K * (shape.dim + 64) + 2 * K * kStepRows + kStepRows + 6 * K + 64;
  return (chunks * one + 3 * K + 64) * 8;
}

}  // namespace TIM_ISA
}  // namespace tim_ext
