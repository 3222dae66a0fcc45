// TIM-ADM in the primal form: W [K, d] explicit, for many samples or few dimensions.
//
//   softmax pass   logits_ik = z_i . (w_k - w_K)                     N d (K - 1) multiply-adds
//   q pass         A_k = sum_i X_ik z_i, k < K (A_K = -sum_k A_k)    N d (K - 1)
//   update         w_k <- (A_k + B_k w_k) / D_k
//
// Samples run in blocks of rows that fit L2; consecutive blocks form chunks, the pieces that threads share.
// Both depend on the task's shape alone, and chunks are added in order, so the threads never change a bit.
// Memory beyond the features: log p (N K numbers) and one A (K d) per chunk.

template <class T>
class Primal {
 public:
  static constexpr int W = kWidth<T>;
  static constexpr int64_t kMaxChunks = 32;

  static constexpr bool kNeedsLog = true;  // p is not kept: restore_block makes it from log p
  int64_t blocks;

  Primal(const Task& task, const AdmParams& params, const T* scale, const Team& team, void* work)
      : task_(task), scale_(scale), team_(team), c_(coefficients<T>(params, task)) {
    Arena arena(work);
    const int64_t K = task.classes, N = task.samples();
    rows_ = rows_per_block<T>(task);
    blocks = (N + rows_ - 1) / rows_;
    chunk_blocks_ = (blocks + kMaxChunks - 1) / kMaxChunks;
    chunks_ = (blocks + chunk_blocks_ - 1) / chunk_blocks_;
    weights_ = arena.take<T>(K * task.dim);
    difference_ = arena.take<T>(K * task.dim);
    logits_ = arena.take<T>(blocks * rows_ * K);
    before_ = params.tol > 0 ? arena.take<T>(blocks * rows_ * K) : nullptr;
    labels_ = arena.take<typename Simd<T>::Int>(blocks * rows_);
    sums_ = arena.take<T>(chunks_ * K * task.dim);
    p_ = arena.take<T>(chunks_ * K * rows_);
    log_total_ = arena.take<T>(chunks_ * rows_);
    inverse_ = arena.take<T>(chunks_ * rows_);
    x_ = arena.take<T>(chunks_ * K * rows_);
    pointers_ = arena.take<const T*>(chunks_ * rows_);
    converted_ = rows_need_scratch<T>(task) ? arena.take<T>(chunks_ * rows_ * task.dim) : nullptr;
    state = take_class_state<T>(arena, K, blocks, chunks_);
    bytes_ = arena.used();
  }
  int64_t bytes() const { return bytes_; }
  const Coefficients<T>& coefs() const { return c_; }

  void prepare() {
    fill_labels(task_, blocks * rows_, labels_, state);
    const int64_t K = task_.classes;
    for (int64_t j = 0; j < K * task_.dim; ++j) weights_[j] = T(0);
    // Prototypes: the support samples come first.
    for (int64_t i = 0; i < task_.support; ++i) {
      const T* x;
      row_pointers(task_, i, 1, converted_, &x);
      T* w = weights_ + task_.labels[i] * task_.dim;
      const T share = scale_[i] / state.count[task_.labels[i]];
      for (int64_t j = 0; j < task_.dim; ++j) w[j] += share * x[j];
    }
    differences();
  }

  template <class F>
  void softmax_pass(F f) {
    each_piece([&](Block<T>& block, int64_t b, int64_t chunk) {
      const int64_t i0 = b * rows_, n = count(b);
      const T** x = pointers_ + chunk * rows_;
      row_pointers(task_, i0, n, scratch(chunk), x);
      dot_rows(x, scale_ + i0, n, difference_, task_.classes - 1, task_.dim, block.logits, rows_);
      for (int64_t k = 0; k < task_.classes - 1; ++k)
        for (int64_t i = n; i < block.vectors * W; ++i) block.logits[k * rows_ + i] = T(0);
      f(block, b, chunk);
    });
  }
  template <class F>
  void q_pass(F f) {
    const int64_t K = task_.classes;
    for (int64_t j = 0; j < chunks_ * K * task_.dim; ++j) sums_[j] = T(0);
    each_piece([&](Block<T>& block, int64_t b, int64_t chunk) {
      const int64_t i0 = b * rows_, n = count(b);
      restore_block(K, c_, block);
      f(block, b, chunk);
      for (int64_t k = 0; k < K - 1; ++k)
        for (int64_t i = 0; i < n; ++i) block.x[k * rows_ + i] *= scale_[i0 + i];
      const T** x = pointers_ + chunk * rows_;
      row_pointers(task_, i0, n, scratch(chunk), x);
      accumulate_rows(x, n, block.x, rows_, K - 1, task_.dim, sums_ + chunk * K * task_.dim,
                      task_.dim);
    });
  }
  template <class F>
  void each_block(F f) {
    each_piece([&](Block<T>& block, int64_t b, int64_t) { f(block, b); });
  }
  T* before(int64_t b) { return before_ + b * rows_ * task_.classes; }

  void update() {
    const int64_t K = task_.classes, d = task_.dim;
    run(team_, (d + kUpdateColumns - 1) / kUpdateColumns, [&](int64_t piece) {
      const int64_t first = piece * kUpdateColumns, last = first + kUpdateColumns < d ? first + kUpdateColumns : d;
      double rest[kUpdateColumns] = {};  // -A_K
      for (int64_t k = 0; k < K; ++k) {
        const T inverse = T(1) / (c_.support * state.count[k] + c_.query * state.q[k]);
        double sum[kUpdateColumns] = {};
        for (int64_t chunk = 0; chunk < chunks_ && k < K - 1; ++chunk)
          for (int64_t j = first; j < last; ++j) sum[j - first] += double(sums_[(chunk * K + k) * d + j]);
        for (int64_t j = first; j < last; ++j) {
          if (k < K - 1)
            rest[j - first] += sum[j - first];
          else
            sum[j - first] = -rest[j - first];
          T& w = weights_[k * d + j];
          w = (T(sum[j - first]) + state.p[k] * w) * inverse;
        }
      }
    });
    differences();
  }

  void finish(const TaskOutputs<T>& out) {
    each_piece([&](Block<T>& block, int64_t b, int64_t) {
      restore_block(task_.classes, c_, block);
      write_results(task_, out, block, b * rows_, count(b));
    });
    if (out.weights)
      for (int64_t j = 0; j < task_.classes * task_.dim; ++j) out.weights[j] = weights_[j];
  }

  ClassState<T> state;

 private:
  static constexpr int64_t kUpdateColumns = 64;

  int64_t count(int64_t b) const { return (b + 1) * rows_ < task_.samples() ? rows_ : task_.samples() - b * rows_; }
  T* scratch(int64_t chunk) { return converted_ ? converted_ + chunk * rows_ * task_.dim : nullptr; }
  template <class F>
  void each_piece(F f) {
    run(team_, chunks_, [&](int64_t chunk) {
      const int64_t end = (chunk + 1) * chunk_blocks_ < blocks ? (chunk + 1) * chunk_blocks_ : blocks;
      for (int64_t b = chunk * chunk_blocks_; b < end; ++b) {
        const int64_t K = task_.classes, queries_from = (task_.support - b * rows_) / W;
        Block<T> block{logits_ + b * rows_ * K,
                       log_total_ + chunk * rows_,
                       inverse_ + chunk * rows_,
                       p_ + chunk * K * rows_,
                       x_ + chunk * K * rows_,
                       rows_,
                       labels_ + b * rows_,
                       (count(b) + W - 1) / W,
                       queries_from > 0 ? queries_from : 0,
                       b == blocks - 1};
        f(block, b, chunk);
      }
    });
  }
  void differences() {
    weight_differences(weights_, task_.classes, task_.dim, c_.tau, difference_, state.shift);
  }

  const Task& task_;
  const T* scale_;
  const Team& team_;
  Coefficients<T> c_;
  int64_t rows_, chunk_blocks_, chunks_, bytes_;
  T *weights_, *difference_, *logits_, *before_, *sums_, *log_total_, *inverse_, *p_, *x_, *converted_;
  const T** pointers_;
  typename Simd<T>::Int* labels_;
};

template <class T>
int64_t primal_workspace(const Task& task, const AdmParams& params) {
  return Primal<T>(task, params, nullptr, Team{1, nullptr}, nullptr).bytes();
}

template <class T>
void primal_solve(const Task& task, const AdmParams& params, const T* scale, const TaskOutputs<T>& out,
                  const Team& team, void* work) {
  Primal<T> form(task, params, scale, team, work);
  form.prepare();
  *out.iterations = iterate<0>(form, task, params, form.coefs(), form.state, out.history);
  form.finish(out);
}
