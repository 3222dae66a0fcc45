// w_update of a task: the next W from p and the assignments, the features in one pass.
#pragma once

#include "cpu/kernels/prelude.h"
#include "cpu/kernels/sample_major-inl.h"
#include "cpu/kernels/step_rows-inl.h"

namespace tim_ext {
namespace TIM_ISA {

// Rows whose weighted sums are added at a time. What is fetched meanwhile must find room in L1; with more classes than a tile
// has, the arithmetic outlasts the memory, and sums that are loaded and stored less often count for more.
constexpr int64_t sum_rows_of(int64_t classes) { return classes > 6 ? 32 : TIM_VEC_BYTES == 64 ? 4 : 16; }
// Sums in registers: 6 x 4 of 32, 6 x 2 of 16.
constexpr int kSumClasses = 6, kSumVectors = TIM_VEC_BYTES == 64 ? 4 : 2;

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
  WStep(const Laid<WUpdate<T>>& s, int64_t task, Arena& arena) : s_(s), task_(task), vectors_(s.shape.dim) {
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

  const Laid<WUpdate<T>>& s_;
  const int64_t task_, K = s_.shape.classes;
  const RowVectors<T> vectors_;
  T on_query_ = T(0);
  WChunk<T> chunks_[kStepChunks];
};

template <class T>
void w_update_step(const Laid<WUpdate<T>>& s, int64_t task, const Team& team, void* work) {
  Arena arena(work);
  WStep<T>(s, task, arena).run(team);
}

}  // namespace TIM_ISA
}  // namespace tim_ext
