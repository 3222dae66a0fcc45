// TIM-ADM in the dual (Gram) form: w_k = sum_i C_ik z_i, so everything follows from G = Z Z^T [N, N].
// For N = 100, K = 5 the state is 50 KB and never leaves L2.
//
//   U_k = G (C_k - C_K)          = z_i . (w_k - w_K), only K - 1 products
//   shift_k = tau/2 U_k . (C_k + C_K) = tau/2 (||w_k||^2 - ||w_K||^2)
//   C_ik <- (X_ik + B_k C_ik) / D_k,   D_k = c_S |S_k| + c_Q sum over Q of q_ik
// A task that chooses its steps (StepControl) has R = F(C) - C there instead; P = G R then gives <R, R> = R . P, and C and U
// move along R and P: still one product per iteration.
// The columns of C sum to 1, so that the task's mean may be subtracted from all z_i, and is: G is that of z_i - mean.
//
// Layout: G in panels of columns (Panels). U, p, x class-major, [K][lanes]; C as C_k - C_K, k < K, and C_K.
#pragma once

#include "cpu/kernels/dual_steps-inl.h"
#include "cpu/kernels/iteration-inl.h"
#include "cpu/kernels/prelude.h"
#include "cpu/kernels/rows-inl.h"
#include "cpu/kernels/smoothing-inl.h"
#include "cpu/kernels/tiles-inl.h"

namespace tim_ext {
namespace TIM_ISA {

template <class T>
class Dual {
 public:
  static constexpr int W = kWidth<T>;
  static constexpr int64_t kBlockSamples = kBlockLanes;
  static constexpr int64_t kChunk = 128;  // features per step of the Gram product

  static constexpr bool kNeedsLog = false;
  int64_t blocks;

  Dual(const Task& task, const AdmParams& params, const T* scale, const Team& team, Arena& arena)
      : task_(task),
        scale_(scale),
        team_(team),
        c_(coefficients<T>(params, task)),
        reach_(task.smoothing),
        panels_(task.samples()),
        samples_(task, panels_.lanes, panels_.lanes, arena) {
    const int64_t K = task.classes;
    lanes_ = panels_.lanes;
    vectors_ = panels_.vectors;
    blocks = (lanes_ + kBlockSamples - 1) / kBlockSamples;
    gram_ = arena.take<T>(lanes_ * lanes_);
    for (T** array : {&difference_, &logits_, &p_, &x_}) *array = arena.take<T>(K * lanes_);
    before_ = params.tol > 0 ? arena.take<T>(K * lanes_) : nullptr;
    for (T** array : {&last_, &log_total_, &inverse_, &p_weight_, &q_weight_}) *array = arena.take<T>(lanes_);
    block_ = arena.take<Block<T>>(blocks);
    shift_parts_ = reinterpret_cast<Vec<T>*>(arena.take<char>(panels() * K * int64_t(sizeof(Vec<T>))));
    state = take_class_state<T>(arena, K, blocks, blocks);
    if (params.chooses_steps) steps_.emplace(task, params, lanes_, panels(), arena);
    if (reach_ > 0) smoothing_.emplace(task, panels_, arena);
    // The packed features are needed only before the first iteration, the row blocks only after the last.
    const int64_t rows = rows_per_block<T>(task);
    Arena pack(arena), result(arena);
    packed_ = pack.take<T>(lanes_ * kChunk);
    pointers_ = result.take<const T*>(rows);
    coefficients_ = result.take<T>(K * rows);
    rest_ = result.take<double>(K);
    converted_ = rows_need_scratch<T>(task) ? result.take<T>(rows * odd_lines<T>(task.dim)) : nullptr;
    arena = pack.used() > result.used() ? pack : result;
  }
  const Coefficients<T>& coefs() const { return c_; }
  const Team& team() const { return team_; }

  void prepare() {
    for (int64_t b = 0; b < blocks; ++b) block_[b] = block(b);
    gram();
    if (smoothing_) smoothing_->smooth(gram_, reach_, scale_, team_);
    fill_classes(task_, state);
    samples_.fill(task_, c_, team_);
    state.sample_prior_range = samples_.prior_range();
    const int64_t K = task_.classes;
    auto prototype = [&](int64_t k, int64_t i) {
      return i < task_.support && task_.labels[i] == k ? T(1) / state.count[k] : T(0);
    };
    for (int64_t i = 0; i < lanes_; ++i) {
      last_[i] = prototype(K - 1, i);
      for (int64_t k = 0; k < K - 1; ++k) difference_[k * lanes_ + i] = prototype(k, i) - last_[i];
    }
  }

  template <class F>
  void softmax_pass(F f) {
    if (steps_)
      move();
    else
      product<true>(difference_, logits_);
    each([&](Block<T>& block, int64_t b) { f(block, b, b); });
  }
  // C_k <- (X_k + B_k C_k) / D_k, as differences to the last class: C_k - C_K is what the product needs. Or the residual.
  template <int KT, From from, bool known>
  void q_step() {
    each([&](Block<T>& block, int64_t b) { q_total<KT, from, known>(task_, c_, state, block, b); });
    combine_q(task_, c_, state, blocks);
    each([&](Block<T>& block, int64_t b) {
      const T* const difference = difference_ + b * kBlockSamples;
      const T* const last = last_ + b * kBlockSamples;
      T* const next_difference = (steps_ ? steps_->now.difference : difference_) + b * kBlockSamples;
      T* const next_last = (steps_ ? steps_->now.last : last_) + b * kBlockSamples;
      const T *const step = state.step, *const stay = state.stay;
      const int64_t ld = lanes_;
      Vec<T> before = Vec<T>{}, now = Vec<T>{};  // C_K
      q_apply_block<KT, from>(
          task_.classes, c_, state.factor, block,
          [=, &before, &now](int64_t k, int64_t i, Vec<T> x, auto is_last) TIM_LAMBDA_INLINE {
            if constexpr (decltype(is_last)::value) {
              before = load(last + i);
              now = x * step[k] + before * stay[k];
              store(next_last + i, now);
            } else {  // C_k - C_K of the next C
              const int64_t at = k * ld + i;
              store(next_difference + at,
                    load(difference + at) * stay[k] + (before * stay[k] + (x * step[k] - now)));
            }
          });
    });
  }
  template <class F>
  void each_block(F f) {
    each(f);
  }
  T* before(int64_t b) { return before_ + b * kBlockSamples; }

  void finish(const TaskOutputs<T>& out) {
    write_results(task_, out, block(0), 0, task_.samples());
    if (out.proportions) {
      each([&](Block<T>& block, int64_t b) { sum_queries(task_, state, block, b); });
      gather_proportions(task_, state, blocks, out.proportions);
    }
    if (!out.weights) return;
    // w_k = sum_i C_ik (z_i - mean) + mean = sum_i C_ik z_i + rest_k mean,   rest_k = 1 - sum_i C_ik: rounding
    const int64_t K = task_.classes, rows = rows_per_block<T>(task_);
    const T* const coefficients = whole_coefficients();
    for (int64_t i0 = 0; i0 < task_.samples(); i0 += rows) {
      const int64_t n = task_.samples() - i0 < rows ? task_.samples() - i0 : rows;
      row_pointers(task_, i0, n, converted_, pointers_);
      for (int64_t k = 0; k < K; ++k)
        for (int64_t i = 0; i < n; ++i)
          coefficients_[k * rows + i] = coefficients[k * lanes_ + i0 + i] * scale_[i0 + i];
      accumulate_rows(PlainRows<T>{pointers_}, n, coefficients_, rows, K, task_.dim, i0 > 0, out.weights,
                      task_.dim, NothingMeanwhile{});
    }
    const T* const mean = static_cast<const T*>(task_.mean);
    for (int64_t k = 0; k < K; ++k)
      for (int64_t j = 0; j < task_.dim; ++j) out.weights[k * task_.dim + j] += T(rest_[k]) * mean[j];
  }

  ClassState<T> state;

 private:
  // C [K][lanes] of the samples as they came, and rest_k; p and x are no longer needed.
  const T* whole_coefficients() {
    const int64_t K = task_.classes, rows = rows_per_block<T>(task_);
    for (int64_t k = 0; k < K; ++k) {
      rest_[k] = 1;
      for (int64_t i0 = 0; i0 < task_.samples(); i0 += rows) {
        double sum = 0;
        for (int64_t i = i0; i < (i0 + rows < task_.samples() ? i0 + rows : task_.samples()); ++i) {
          x_[k * lanes_ + i] = (k < K - 1 ? difference_[k * lanes_ + i] : T(0)) + last_[i];
          sum += double(x_[k * lanes_ + i]);
        }
        rest_[k] -= sum;
      }
      if (smoothing_) rest_[k] *= smoothing_->share_of_mean();
    }
    if (!smoothing_) return x_;
    smoothing_->unsmooth(x_, p_, K);
    return p_;
  }

  static constexpr int64_t kParallelLanes = 1024;  // from here on a product is worth sharing among threads

  int64_t end_of(int64_t b) const {
    return (b + 1) * kBlockSamples < lanes_ ? (b + 1) * kBlockSamples : lanes_;
  }
  Block<T> block(int64_t b) {
    const int64_t first = b * kBlockSamples, queries_from = task_.support / W - first / W;
    Block<T> one;
    one.logits = logits_ + first;
    one.log_total = log_total_ + first;
    one.inverse = inverse_ + first;
    one.p = p_ + first;
    one.x = x_ + first;
    one.p_weight = p_weight_ + first;
    one.q_weight = q_weight_ + first;
    one.ld = lanes_;
    one.vectors = (end_of(b) - first) / W;
    one.first_query = queries_from > 0 ? queries_from : 0;
    samples_.bind(one, first);
    return one;
  }
  template <class F>
  void each(F f) {
    if (blocks == 1) return f(block_[0], 0);
    run(team_, blocks, [&](int64_t b) { f(block_[b], b); });
  }

  int64_t panels() const { return panels_.count(); }
  void panel(int64_t j, int64_t* first, int64_t* width) const { panels_.get(j, first, width); }
  T* gram_panel(int64_t first) { return gram_ + first * W * lanes_; }

  // G in chunks of kChunk features: pack the transposed panels, then add their products to the upper
  // triangle of panels; finally mirror it.
  void gram() {
    const int64_t n = panels();
    for (int64_t c0 = 0; c0 < task_.dim; c0 += kChunk) {
      pause(team_);
      const int64_t columns = task_.dim - c0 < kChunk ? task_.dim - c0 : kChunk;
      run(team_, n, [&](int64_t j) {
        int64_t first, width;
        panel(j, &first, &width);
        T* const packed = packed_ + first * W * kChunk;
        pack_panel(task_, scale_, first * W, width * W, c0, columns, packed);
        if (smoothing_) along_mean(packed, width, c0, columns, smoothing_->along_mean + first * W);
      });
      run(team_, n, [&](int64_t j) { gram_columns(j, columns, c0 == 0); });
    }
    run(team_, n, [&](int64_t j) { mirror(j); });
  }

  // out[i] (+)= sum over these columns of (z_i - mean)[c] mean[c], for the samples of a packed panel.
  void along_mean(const T* packed, int64_t width, int64_t c0, int64_t columns, T* out) {
    const T* const mean = static_cast<const T*>(task_.mean) + c0;
    for (int64_t v = 0; v < width; ++v) {
      Vec<T> sum = c0 > 0 ? load(out + v * W) : Vec<T>{};
      for (int64_t c = 0; c < columns; ++c) sum += load(packed + (c * width + v) * W) * mean[c];
      store(out + v * W, sum);
    }
  }

  // A last vector of few samples is computed as rows, not as columns: its rows are short of none of their lanes.
  bool narrow_end() const {
    const int64_t rest = task_.samples() % W;
    return rest > 0 && 2 * rest <= W && vectors_ > 1;
  }

  // Columns of panel j: G[r][i] (+)= sum_c z_r[c] z_i[c], for the rows r down to the diagonal and, with a narrow end,
  // for its rows instead of its column.
  void gram_columns(int64_t j, int64_t columns, bool overwrite) {
    int64_t first, width;
    panel(j, &first, &width);
    const T* a = packed_ + first * W * kChunk;
    T* g = gram_panel(first);
    const bool narrow = narrow_end();
    const int64_t end = narrow ? (vectors_ - 1) * W : task_.samples();  // of the rows above the diagonal
    const int64_t wide = narrow && j == panels() - 1 ? width - 1 : width;
    auto rows = [&](int64_t row_panel, int64_t from, int64_t to, bool all) {  // rows from .. to - 1 of it
      int64_t row_first, row_width;
      panel(row_panel, &row_first, &row_width);
      const T* b = packed_ + row_first * W * kChunk + from;
      for_row_tiles(to - from, [&](int64_t r0, auto nr) {
        // In the diagonal panel, only vectors that reach the diagonal.
        const int64_t skip = !all && row_panel == j ? (from + r0) / W : 0;
        const int64_t used = (all ? width : wide) - skip;
        if (used <= 0) return;
        with_constant<kPanelVectors>(int(width), [&](auto nv) {
          with_constant<decltype(nv)::value>(int(used), [&](auto nu) {
            gram_tile<decltype(nr)::value, decltype(nv)::value, decltype(nu)::value>(
                a + skip * W, b + r0, row_width * W, columns, g + skip * W, row_first * W + from + r0,
                overwrite);
          });
        });
      });
    };
    for (int64_t other = 0; other <= j; ++other) {
      int64_t row_first, row_width;
      panel(other, &row_first, &row_width);
      const int64_t left = end - row_first * W;
      rows(other, 0, row_width * W < left ? row_width * W : left, false);
    }
    if (narrow) {
      int64_t last_first, last_width;
      panel(panels() - 1, &last_first, &last_width);
      rows(panels() - 1, end - last_first * W, task_.samples() - last_first * W, true);
    }
  }
  template <int NR, int NV, int Used>
  TIM_INLINE void gram_tile(const T* a, const T* b, int64_t b_step, int64_t columns, T* g, int64_t row,
                            bool overwrite) {
    Vec<T> acc[NR][Used] = {};
    multiply_tile<T, NR, Used, NV>(acc, a, b, 1, b_step, columns);
#pragma GCC unroll 8
    for (int r = 0; r < NR; ++r)
#pragma GCC unroll 8
      for (int v = 0; v < Used; ++v) {
        T* to = g + ((row + r) * NV + v) * W;
        store(to, overwrite ? acc[r][v] : load(to) + acc[r][v]);
      }
  }
  // What gram_columns left out, from the other side of the diagonal, a transposed block at a time: rows below panel
  // j's diagonal from the panels to its right; with a narrow end its column, in the rows of panel j.
  void mirror(int64_t j) {
    int64_t first, width;
    panel(j, &first, &width);
    for (int64_t other = j; other < panels(); ++other) {
      int64_t of, ow;
      panel(other, &of, &ow);
      for (int64_t r = 0; r < ow; ++r)         // block row: vector of + r
        for (int64_t v = 0; v < width; ++v) {  // block column: vector first + v
          if (of + r <= first + v) continue;
          T* below = gram_panel(first) + ((of + r) * W * width + v) * W;
          T* above = gram_panel(of) + ((first + v) * W * ow + r) * W;
          const bool up = narrow_end() && of + r == vectors_ - 1;
          const T* from = up ? below : above;
          T* to = up ? above : below;
          const int64_t step = (up ? width : ow) * W, to_step = (up ? ow : width) * W;
          const int64_t rows = up ? task_.samples() % W : W;  // the narrow end has no more; the others are 0
          Vec<T> tile[W];
          for (int l = 0; l < W; ++l) tile[l] = l < rows ? load(from + l * step) : Vec<T>{};
          transpose<T>(tile);
          for (int l = 0; l < W; ++l) store(to + l * to_step, tile[l]);
        }
    }
  }

  // f(j, first vector, vectors) for every panel, shared among threads where it is worth it.
  template <class F>
  void for_panels(F f) {
    auto one = [&](int64_t j) {
      int64_t first, width;
      panel(j, &first, &width);
      f(j, first, width);
    };
    if (lanes_ >= kParallelLanes) return run(team_, panels(), one);
    for (int64_t j = 0; j < panels(); ++j) one(j);
  }

  // out_k = G columns_k; if those are the differences of C, shift_k = tau/2 U_k . (C_k + C_K) with its terms summed panel by
  // panel as U appears.
  template <bool with_shift>
  void product(const T* columns, T* out) {
    for_panels([&](int64_t j, int64_t first, int64_t width) {
      with_constant<kPanelVectors>(int(width), [&](auto nv) {
        product_panel<decltype(nv)::value, with_shift>(j, first, columns, out);
      });
    });
    if (with_shift) sum_shifts();
  }
  void sum_shifts() {
    const int64_t columns = task_.classes - 1, n = panels();
    const T half = c_.tau / 2;
    for (int64_t k = 0; k < columns; ++k) {
      Vec<T> sum = shift_parts_[k];
      for (int64_t j = 1; j < n; ++j) sum += shift_parts_[j * columns + k];
      state.shift[k] = half * reduce_add<T>(sum);
    }
  }
  template <int NV, bool with_shift>
  TIM_INLINE void product_panel(int64_t j, int64_t first, const T* columns, T* out) {
    const int64_t K = task_.classes, n = task_.samples();
    // With four samples at most in the last vector, four columns share a vector of sums for them.
    const bool short_end = W == 16 && NV > 1 && first + NV == vectors_ && n % W > 0 && n % W <= 4;
    for_row_tiles(K - 1, [&](int64_t k0, auto nr) {
      constexpr int NR = decltype(nr)::value;
      const T* const b = columns + k0 * lanes_;
      Vec<T> acc[NR][NV] = {};
      if constexpr (W == 16 && NR == 4 && NV > 1) {
        if (short_end) {
          Vec<T> whole[NR][NV - 1] = {}, tail = Vec<T>{};
          multiply_tile_and_tail<T, NV - 1, NV>(whole, tail, gram_panel(first), b, lanes_, n);
          constexpr std::make_integer_sequence<int, W> lanes{};
          const Vec<T> ends[4] = {four_of<T, 0>(tail, lanes), four_of<T, 4>(tail, lanes),
                                  four_of<T, 8>(tail, lanes), four_of<T, 12>(tail, lanes)};
#pragma GCC unroll 4
          for (int r = 0; r < NR; ++r)
#pragma GCC unroll 8
            for (int v = 0; v < NV; ++v) acc[r][v] = v < NV - 1 ? whole[r][v] : ends[r];
          return put_product<NR, NV, with_shift>(acc, j, first, k0, columns, out);
        }
      }
      multiply_tile<T, NR, NV, NV>(acc, gram_panel(first), b, lanes_, 1, n);
      put_product<NR, NV, with_shift>(acc, j, first, k0, columns, out);
    });
  }
  template <int NR, int NV, bool with_shift>
  TIM_INLINE void put_product(const Vec<T> (&acc)[NR][NV], int64_t j, int64_t first, int64_t k0,
                              const T* columns, T* out) {
    [[maybe_unused]] const T* const last = last_ + first * W;
#pragma GCC unroll 8
    for (int r = 0; r < NR; ++r) {
      const int64_t at = (k0 + r) * lanes_ + first * W;
      [[maybe_unused]] Vec<T> shift = Vec<T>{};
#pragma GCC unroll 8
      for (int v = 0; v < NV; ++v) {
        store(out + at + v * W, acc[r][v]);
        if constexpr (with_shift)
          shift += acc[r][v] * (load(columns + at + v * W) + load(last + v * W) * T(2));
      }
      if constexpr (with_shift) shift_parts_[j * (task_.classes - 1) + k0 + r] = shift;
    }
  }

  // The next point of a task that chooses its steps, and its U in the logits.
  void move() {
    if (!steps_->started()) {
      steps_->start();
      product<true>(difference_, logits_);
      for (int64_t j = 0; j < (task_.classes - 1) * lanes_; ++j) steps_->scores[j] = logits_[j];
      return;
    }
    product<false>(steps_->now.difference, steps_->now.product);
    for_panels([&](int64_t j, int64_t first, int64_t width) { steps_->inner_products(j, first * W, width); });
    const T factor = T(steps_->choose().factor);
    for_panels([&](int64_t j, int64_t first, int64_t width) {
      steps_->move(factor, first * W, width, difference_, last_, logits_,
                   shift_parts_ + j * (task_.classes - 1));
    });
    sum_shifts();
  }

  const Task& task_;
  const T* scale_;
  const Team& team_;
  Coefficients<T> c_;
  double reach_;
  Panels<T> panels_;
  SampleLanes<T> samples_;
  std::optional<GramSmoothing<T>> smoothing_;
  std::optional<DualSteps<T>> steps_;
  int64_t lanes_, vectors_;
  T *gram_, *difference_, *last_, *logits_, *log_total_, *inverse_, *p_, *p_weight_, *x_, *q_weight_,
      *before_, *packed_, *coefficients_, *converted_;
  double* rest_;
  const T** pointers_;
  Block<T>* block_;      // [blocks]
  Vec<T>* shift_parts_;  // [panels][K - 1]
};

template <class T>
void dual_solve(const Task& task, const AdmParams& params, const T* scale, const TaskOutputs<T>& out,
                const Team& team, void* work) {
  Arena arena(work);
  Dual<T> form(task, params, scale, team, arena);
  form.prepare();
  if (task.sample_log_prior)
    *out.iterations = iterate<0, true>(form, task, params, form.coefs(), form.state, out);
  else
    with_fixed_classes<2, 5>(task.classes, [&](auto kt) {
      *out.iterations =
          iterate<decltype(kt)::value, false>(form, task, params, form.coefs(), form.state, out);
    });
  form.finish(out);
}

}  // namespace TIM_ISA
}  // namespace tim_ext
