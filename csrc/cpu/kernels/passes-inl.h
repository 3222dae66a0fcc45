// Passes over the samples with W [K, d] explicit: for many samples or few dimensions, and for TIM-GD.
//
//   softmax pass   logits_ik = z_i . (w_k - w_K)                     N d (K - 1) multiply-adds
//   weighted pass  A_k = sum_i x_ik z_i                              N d K, or N d (K - 1) with A_K = -sum_k A_k
//                  where the rows x_i sum to 0; that costs A_K digits if class K has far less mass than others
//
// Samples run in blocks of rows that fit L2; consecutive blocks form chunks, the pieces that threads share.
// Both depend on the task's shape alone, and chunks are added in order, so the threads never change a bit.
// z_i and w_k are those of the task minus its mean, which W gets back at the end: distances are the same.
// Memory beyond the features: log p (N K numbers) and one A (K d) per chunk. Rows of W, A and the like are padded
// with zeros to whole vectors.
#pragma once

#include "cpu/kernels/iteration-inl.h"
#include "cpu/kernels/prelude.h"
#include "cpu/kernels/rows-inl.h"
#include "cpu/kernels/tiles-inl.h"

namespace tim_ext {
namespace TIM_ISA {

// Memory of the caller that outlives the passes, where the softmax and the weighted pass are separate calls.
template <class T>
struct Kept {
  T* logits = nullptr;     // log p of every block
  T* before = nullptr;     // p of every block at the weights before, or null
  bool all = false;        // the two above are used
  int64_t max_chunks = 0;  // into which the samples are cut; 0: as many as chunks_of
};

// Into how many chunks a whole task is cut at most. Each has an A [K, d] of its own: 32 of them where they are small,
// 4 where each is large, so that the workspace stays a small multiple of W.
template <class T>
int64_t chunks_of(const Task& task) {
  const double most = double(512 << 20), bytes = double(task.classes) * double(task.dim) * sizeof(T);
  return bytes * 32 <= most ? 32 : bytes * 4 >= most ? 4 : int64_t(most / bytes);
}

template <class T>
class PrimalPasses {
 public:
  static constexpr int W = kWidth<T>;
  static constexpr bool kNeedsLog = true;  // restore_block makes p from log p
  int64_t blocks;
  ClassState<T> state;

  PrimalPasses(const Task& task, const Coefficients<T>& c, bool keep_before, bool all_columns, const T* scale,
               const Team& team, Arena& arena, const Kept<T>& kept = {})
      : task_(task),
        scale_(scale),
        team_(team),
        c_(c),
        columns_(all_columns ? task.classes : task.classes - 1) {
    const int64_t K = task.classes, N = task.samples();
    pitch_ = round_up(task.dim, W);
    rows_ = rows_per_block<T>(task);
    blocks = (N + rows_ - 1) / rows_;
    const int64_t most = kept.max_chunks ? kept.max_chunks : chunks_of<T>(task);
    chunk_blocks_ = (blocks + most - 1) / most;
    restore_ = kept.all || chunk_blocks_ > 1;
    chunks_ = (blocks + chunk_blocks_ - 1) / chunk_blocks_;
    pieces_ = (pitch_ + kPieceColumns - 1) / kPieceColumns;
    weights_ = arena.take<T>(K * pitch_);
    difference_ = arena.take<T>(K * pitch_);
    logits_ = kept.all ? kept.logits : arena.take<T>(blocks * rows_ * K);
    before_ = kept.all ? kept.before : keep_before ? arena.take<T>(blocks * rows_ * K) : nullptr;
    sums_ = arena.take<T>(chunks_ * K * pitch_);
    p_ = arena.take<T>(chunks_ * K * rows_);
    log_total_ = arena.take<T>(chunks_ * rows_);
    inverse_ = arena.take<T>(chunks_ * rows_);
    x_ = arena.take<T>(chunks_ * K * rows_);
    p_weight_ = arena.take<T>(chunks_ * rows_);
    q_weight_ = arena.take<T>(chunks_ * rows_);
    pointers_ = arena.take<const T*>(chunks_ * rows_);
    const bool converts = samples_need_scratch<T>(task);
    spreads_ = converts && columns_ > 12;  // with fewer, the work on a part is short
    dot_rows_ = converts ? rows_per_part(4 * 4) : rows_;
    // A [K, dim] is read and written for every part: fewer of them where it does not fit L1.
    sum_rows_ = converts ? rows_per_part(K * pitch_ * int64_t(sizeof(T)) > 16384 ? 128 : 32) : rows_;
    converted_pitch_ = odd_lines<T>(task.dim);
    converted_ = converts ? arena.take<T>(chunks_ * sum_rows_ * converted_pitch_) : nullptr;
    ones_ = centring(task) ? arena.take<T>(rows_) : nullptr;
    column_ = reinterpret_cast<Vec<T>*>(arena.take<char>(pieces_ * 2 * K * int64_t(sizeof(Vec<T>))));
    shift_parts_ = arena.take<T>(pieces_ * K);
    samples_.emplace(task, blocks * rows_, rows_, arena);
    state = take_class_state<T>(arena, K, blocks, chunks_);
  }
  const Coefficients<T>& coefs() const { return c_; }
  const Team& team() const { return team_; }
  bool restores() const { return restore_; }  // p is made from log p where it is needed again

  // Labels, and what centred samples are scaled by.
  void prepare_samples() {
    fill_classes(task_, state);
    samples_->fill(task_, c_, team_);
    state.sample_prior_range = samples_->prior_range();
    if (ones_)
      for (int64_t i = 0; i < rows_; ++i) ones_[i] = T(1);
  }

  // W = the weights given [K, dim], or the prototypes; the support samples come first.
  void prepare(const void* given) {
    prepare_samples();
    for (int64_t row = 1; row <= chunks_ * task_.classes; ++row)
      store(sums_ + row * pitch_ - W, Vec<T>{});  // beyond dim they stay so
    if (given)
      copy_weights(static_cast<const T*>(given));
    else
      add_prototypes();
    keep_weights();
  }
  void copy_weights(const T* given) {
    const T* const mean = static_cast<const T*>(task_.mean);
    for (int64_t k = 0; k < task_.classes; ++k) {
      T* const w = weights_ + k * pitch_;
      store(w + pitch_ - W, Vec<T>{});
      for (int64_t j = 0; j < task_.dim; ++j) w[j] = given[k * task_.dim + j];
      for (int64_t j = 0; mean && j < task_.dim; ++j) w[j] -= mean[j];
    }
  }
  void add_prototypes() {
    for (int64_t j = 0; j < task_.classes * pitch_; ++j) weights_[j] = T(0);
    for (int64_t i = 0; i < task_.support; ++i) {
      const T* x;
      sample_pointers(task_, scale_, i, 1, converted_, &x);
      T* w = weights_ + task_.labels[i] * pitch_;
      const T share = scales(i)[0] / state.count[task_.labels[i]];
      for (int64_t j = 0; j < task_.dim; ++j) w[j] += share * x[j];
    }
  }

  template <class F>
  void softmax_pass(F f) {
    each_piece([&](Block<T>& block, int64_t b, int64_t chunk) {
      const int64_t n = count(b);
      each_part(b, chunk, dot_rows_, [&](const T* const* x, const T* scale, int64_t first, int64_t some) {
        with_rows(x, b, first, some, [&](auto rows, auto meanwhile) {
          dot_rows(rows, scale, some, difference_, pitch_, task_.classes - 1, task_.dim, block.logits + first,
                   rows_, meanwhile);
        });
      });
      for (int64_t k = 0; k < task_.classes - 1; ++k)
        for (int64_t i = n; i < block.vectors * W; ++i) block.logits[k * rows_ + i] = T(0);
      f(block, b, chunk);
    });
  }
  template <class F>
  void weighted_pass(F f) {
    const int64_t K = task_.classes;
    each_piece([&](Block<T>& block, int64_t b, int64_t chunk) {
      const int64_t n = count(b);
      if (restore_) {  // otherwise it is still there
        if (task_.sample_log_prior)
          restore_block<true>(K, c_, block);
        else
          restore_block<false>(K, c_, block);
      }
      f(block, b, chunk);
      if (!ones_) {
        const T* scale = scales(b * rows_);
        for (int64_t k = 0; k < columns_; ++k)
          for (int64_t i = 0; i < n; ++i) block.x[k * rows_ + i] *= scale[i];
      }
      each_part(b, chunk, sum_rows_, [&](const T* const* x, const T*, int64_t first, int64_t some) {
        with_rows(x, b, first, some, [&](auto rows, auto meanwhile) {
          accumulate_rows(rows, some, block.x + first, rows_, columns_, task_.dim,
                          first > 0 || b > chunk * chunk_blocks_, sums_ + chunk * K * pitch_, pitch_,
                          meanwhile);
        });
      });
    });
  }
  // The weighted pass of TIM-ADM: x_ik = c_i (t_ik - p_ik), t = y on S and q on Q; sum over Q of q_ik per block.
  template <int KT, From from, bool known = false>
  void q_pass() {
    weighted_pass([&](Block<T>& block, int64_t b, int64_t) {
      q_total<KT, from, known>(task_, c_, state, block, b);
      T* const out = block.x;
      const int64_t ld = block.ld;
      q_apply_block<KT, from>(task_.classes, c_, state.factor, block,
                              [=](int64_t k, int64_t i, Vec<T> x, auto)
                                  TIM_LAMBDA_INLINE { store(out + k * ld + i, x); });
    });
  }

  template <class F>
  void each_block(F f) {
    each_piece([&](Block<T>& block, int64_t b, int64_t) { f(block, b); });
  }
  T* before(int64_t b) { return before_ + b * rows_ * task_.classes; }

  // w_k <- f(k, position in W, w_k, A_k), a vector of columns at a time and the last class first; then
  // w_k - w_K and shift_k = tau/2 (w_k - w_K) . (w_k + w_K).
  template <bool with_sums = true, class F>
  void update_weights(F f) {
    const int64_t K = task_.classes;
    run(team_, pieces_, [&](int64_t piece) {
      const int64_t first = piece * kPieceColumns, end = first + kPieceColumns;
      Vec<T>* sum = column_ + piece * 2 * K;  // A_k
      Vec<T>* shift = sum + K;
      for (int64_t k = 0; k < K; ++k) sum[k] = shift[k] = Vec<T>{};
      for (int64_t j = first; j < (end < pitch_ ? end : pitch_); j += W) {
        if constexpr (with_sums) gather_sums(j, sum);
        T* w = weights_ + j;
        const Vec<T> last = f(K - 1, (K - 1) * pitch_ + j, load(w + (K - 1) * pitch_), sum[K - 1]);
        store(w + (K - 1) * pitch_, last);
        for (int64_t k = 0; k < K - 1; ++k) {
          const Vec<T> value = f(k, k * pitch_ + j, load(w + k * pitch_), sum[k]);
          const Vec<T> difference = value - last;
          store(w + k * pitch_, value);
          store(difference_ + k * pitch_ + j, difference);
          shift[k] += difference * (value + last);
        }
      }
      for (int64_t k = 0; k < K - 1; ++k) shift_parts_[piece * K + k] = reduce_add<T>(shift[k]);
    });
    for (int64_t k = 0; k < K - 1; ++k) {
      double sum = 0;
      for (int64_t piece = 0; piece < pieces_; ++piece) sum += double(shift_parts_[piece * K + k]);
      state.shift[k] = T(double(c_.tau) / 2 * sum);
    }
  }

  // Only the differences and shifts of W as it is.
  void keep_weights() {
    const Vec<T> zero = Vec<T>{};  // captured: a lambda without captures loses the instruction set in GCC 12
    update_weights<false>([=](int64_t, int64_t, Vec<T> w, Vec<T>) { return w + zero; });
  }

  void finish(const TaskOutputs<T>& out) {
    auto write = [&](Block<T>& block, int64_t b) {
      write_results(task_, out, block, b * rows_, count(b));
      if (out.proportions) sum_queries(task_, state, block, b);
    };
    if (!restore_) {
      each_block(write);
    } else {
      // p once more, from the logits: exp(log p) would cost float32 a digit.
      softmax_pass([&](Block<T>& block, int64_t b, int64_t) {
        Sums<T> sums;
        sums.p = state.parts + b * 4 * state.stride;
        softmax_block<0, false>(task_.classes, c_, state.shift, block, sums);
        finish_block(task_.classes, block);
        write(block, b);
      });
    }
    if (out.proportions) gather_proportions(task_, state, blocks, out.proportions);
    if (out.weights)
      for (int64_t k = 0; k < task_.classes; ++k)
        for (int64_t j = 0; j < task_.dim; ++j)
          out.weights[k * task_.dim + j] = weights_[k * pitch_ + j] + mean_at(j);
  }

 protected:
  static constexpr int64_t kPieceColumns = 128;  // of W, that one thread updates

  int64_t count(int64_t b) const {
    return (b + 1) * rows_ < task_.samples() ? rows_ : task_.samples() - b * rows_;
  }
  const T* scales(int64_t i0) const { return ones_ ? ones_ : scale_ + i0; }
  T mean_at(int64_t j) const { return task_.mean ? static_cast<const T*>(task_.mean)[j] : T(0); }
  // Samples that are made from the features at a time: 8 KB stay in L1 until they are used, unless `least` are more.
  int64_t rows_per_part(int64_t least) const {
    const int64_t fit = 8192 / (pitch_ * int64_t(sizeof(T))) / kWideVectors * kWideVectors,
                  rows = fit > least ? fit : least;
    return rows < rows_ ? rows : rows_;
  }
  T* scratch(int64_t chunk) {
    return converted_ ? converted_ + chunk * sum_rows_ * converted_pitch_ : nullptr;
  }
  // While samples first .. first + n - 1 of block b are worked on: asks for the n samples after them, and for as much of
  // the log p of the next block, which may all come from memory. Of long work, a tile's share at a time: a processor drops
  // some of what is asked for all at once.
  TIM_INLINE void prefetch(int64_t b, int64_t first, int64_t n, int64_t tile, int64_t tiles) const {
    const int64_t from = n * tile / tiles, end = n * (tile + 1) / tiles, K = task_.classes;
    prefetch_samples<T>(task_, b * rows_ + first + n + from, end - from);
    if (b + 1 == blocks) return;
    const T* const next = logits_ + ((b + 1) * rows_ + first) * K;
    for (int64_t at = from * K; at < end * K; at += 64 / int64_t(sizeof(T)))
      __builtin_prefetch(next + at, 0, 2);
  }
  // f(rows, meanwhile), with the samples first .. first + n - 1 of block b as the products read them.
  template <class F>
  TIM_INLINE void with_rows(const T* const* x, int64_t b, int64_t first, int64_t n, F f) const {
    if (task_.centred_in_registers)
      return f(CentredRows<T>{x, static_cast<const T*>(task_.mean)}, NothingMeanwhile{});
    f(PlainRows<T>{x}, Fetching{*this, b, first, n});
  }
  // What comes next is fetched a share at a time, before each tile of a product. (No lambda: the products would be compiled
  // for that of each pass.)
  struct Fetching {
    const PrimalPasses& passes;
    int64_t b, first, n;
    TIM_INLINE void operator()(int64_t tile, int64_t tiles) const {
      if (passes.spreads_) passes.prefetch(b, first, n, tile, tiles);
    }
  };
  // f(x, scales, first, n) for the samples of a block, `rows` at a time.
  template <class F>
  TIM_INLINE void each_part(int64_t b, int64_t chunk, int64_t rows, F f) {
    const int64_t i0 = b * rows_, n = count(b);
    const T** x = pointers_ + chunk * rows_;
    for (int64_t first = 0; first < n; first += rows) {
      const int64_t some = n - first < rows ? n - first : rows;
      if (converted_ && !spreads_) prefetch(b, first, some, 0, 1);
      sample_pointers(task_, scale_, i0 + first, some, scratch(chunk), x);
      f(x, scales(i0 + first), first, some);
    }
  }
  template <class F>
  void each_piece(F f) {
    run(team_, chunks_, [&](int64_t chunk) {
      const int64_t end = (chunk + 1) * chunk_blocks_ < blocks ? (chunk + 1) * chunk_blocks_ : blocks;
      for (int64_t b = chunk * chunk_blocks_; b < end; ++b) {
        const int64_t K = task_.classes, queries_from = (task_.support - b * rows_) / W;
        Block<T> block;
        block.logits = logits_ + b * rows_ * K;
        block.log_total = log_total_ + chunk * rows_;
        block.inverse = inverse_ + chunk * rows_;
        block.p = p_ + chunk * K * rows_;
        block.x = x_ + chunk * K * rows_;
        block.p_weight = p_weight_ + chunk * rows_;
        block.q_weight = q_weight_ + chunk * rows_;
        block.ld = rows_;
        block.vectors = (count(b) + W - 1) / W;
        block.first_query = queries_from > 0 ? queries_from : 0;
        samples_->bind(block, b * rows_);
        f(block, b, chunk);
      }
    });
  }
  // A_k of the columns j .. j + W - 1, all k.
  TIM_INLINE void gather_sums(int64_t j, Vec<T>* sum) const {
    const int64_t columns = columns_;
    Vec<T> rest = Vec<T>{};
    for (int64_t k = 0; k < columns; ++k) {
      sum[k] = chunks_ == 1 ? load(sums_ + k * pitch_ + j) : sum_of_chunks(k, j);
      rest -= sum[k];
    }
    if (columns < task_.classes) sum[columns] = rest;
  }
  Vec<T> sum_of_chunks(int64_t k, int64_t j) const {
    double lane[W] = {};
    for (int64_t chunk = 0; chunk < chunks_; ++chunk)
      for (int l = 0; l < W; ++l) lane[l] += double(sums_[(chunk * task_.classes + k) * pitch_ + j + l]);
    Vec<T> sum;
    for (int l = 0; l < W; ++l) sum[l] = T(lane[l]);
    return sum;
  }

  const Task& task_;
  const T* scale_;
  const Team& team_;
  Coefficients<T> c_;
  std::optional<SampleLanes<T>> samples_;
  int64_t columns_;  // of A that the weighted pass computes
  bool spreads_;     // what is fetched for later, over the tiles of a product
  bool restore_;     // p is made from log p in the weighted pass
  int64_t pitch_, converted_pitch_, rows_, chunk_blocks_, chunks_, pieces_;
  int64_t dot_rows_, sum_rows_;  // samples of a part of a block, see each_part; dot_rows_ <= sum_rows_
  T *weights_, *difference_, *logits_, *before_, *sums_, *log_total_, *inverse_, *p_, *p_weight_, *x_,
      *q_weight_, *converted_, *ones_, *shift_parts_;
  const T** pointers_;
  Vec<T>* column_;
};

}  // namespace TIM_ISA
}  // namespace tim_ext
