// Part of a task: its samples in solver order, then half an iteration on them.
#include "cpu/core/batch.h"

namespace tim_ext {
namespace {

template <class T>
struct Part {
  Worker<T> worker;
  Task task;

  // Samples in solver order, and `scale`, which is in the caller's, with them. False if there is nothing to do.
  bool open(const Batch& part, const void* scale, const void* mean, int64_t* status) {
    status[0] = status[1] = status[2] = 0;
    if (!order_samples(part, 0, 0, worker, task, status)) return false;
    worker.scale.resize(worker.rows.size());
    if (scale)
      for (size_t i = 0; i < worker.scale.size(); ++i)
        worker.scale[i] = static_cast<const T*>(scale)[worker.position[i]];
    if (mean) {
      worker.mean.assign(static_cast<size_t>(padded_dim(part.dim)), T(0));
      std::copy_n(static_cast<const T*>(mean), part.dim, worker.mean.begin());
      task.mean = worker.mean.data();
    }
    return task.samples() > 0;
  }
  void* workspace(int64_t more = 0) {
    return worker.solver.at_least(kernels<T>().shard_workspace(task) + more);
  }
};

}  // namespace

void shard_scale(const Batch& part, bool normalize, void* scale, bool* extreme, int64_t* status,
                 const Team& team) {
  *extreme = false;
  with_real(part.dtype, [&](auto zero) {
    using T = decltype(zero);
    Part<T> p;
    std::fill_n(static_cast<T*>(scale), part.offsets[1], T(0));
    if (!p.open(part, nullptr, nullptr, status)) return;
    constexpr int64_t kPieceRows = 1024;
    const int64_t N = p.task.samples(), pieces = (N + kPieceRows - 1) / kPieceRows;
    std::vector<Rows> found(static_cast<size_t>(pieces));
    std::vector<int64_t> bad(static_cast<size_t>(pieces));
    auto measure = [&](int64_t piece) {
      const int64_t first = piece * kPieceRows;
      Task rows = p.task;
      rows.rows += first;
      rows.support = 0;
      rows.query = std::min(kPieceRows, N - first);
      found[size_t(piece)] =
          kernels<T>().measure_rows(rows, normalize, p.worker.scale.data() + first, &bad[size_t(piece)]);
    };
    if (team.threads > 1)
      team.parallel(pieces, [](void* m, int64_t i) { (*static_cast<decltype(measure)*>(m))(i); }, &measure);
    else
      for (int64_t piece = 0; piece < pieces; ++piece) measure(piece);
    int64_t worst = part.offsets[1];
    for (int64_t piece = 0; piece < pieces; ++piece) {
      if (found[size_t(piece)] == Rows::not_finite)
        worst = std::min(worst, p.worker.position[size_t(piece * kPieceRows + bad[size_t(piece)])]);
      *extreme = *extreme || found[size_t(piece)] == Rows::extreme;
    }
    if (worst < part.offsets[1]) refuse(status, Status::features_not_finite, worst, 0);
    for (size_t i = 0; i < p.worker.scale.size(); ++i)
      static_cast<T*>(scale)[p.worker.position[i]] = p.worker.scale[i];
  });
}

void shard_softmax(const Batch& part, const ShardParams& params, const ShardSoftmax<void>& arrays,
                   int64_t* status, const Team& team) {
  with_real(part.dtype, [&](auto zero) {
    using T = decltype(zero);
    Part<T> p;
    if (!p.open(part, arrays.scale, arrays.mean, status)) {
      const int64_t K = part.classes[0];
      std::fill_n(arrays.columns, 3 * K, 0.0);
      std::fill_n(arrays.columns + K, K, -std::numeric_limits<double>::infinity());
      std::fill_n(arrays.scalars, 4, 0.0);
      arrays.scalars[0] = std::numeric_limits<double>::infinity();
      return;
    }
    ShardSoftmax<T> mine;
    mine.scale = p.worker.scale.data();
    mine.weights = static_cast<const T*>(arrays.weights);
    mine.log_probs = static_cast<T*>(arrays.log_probs);
    mine.before = static_cast<T*>(arrays.before);
    mine.columns = arrays.columns;
    mine.scalars = arrays.scalars;
    kernels<T>().shard_softmax(p.task, params, mine, team, p.workspace());
  });
}

void shard_sums(const Batch& part, const ShardParams& params, const ShardSums<void>& arrays, int64_t* status,
                const Team& team) {
  with_real(part.dtype, [&](auto zero) {
    using T = decltype(zero);
    Part<T> p;
    if (!p.open(part, arrays.scale, arrays.mean, status)) {
      std::fill_n(arrays.sums, part.classes[0] * part.dim, 0.0);
      std::fill_n(arrays.totals, part.classes[0], 0.0);
      return;
    }
    ShardSums<T> mine;
    mine.scale = p.worker.scale.data();
    mine.log_probs = static_cast<T*>(arrays.log_probs);
    mine.factor = static_cast<const T*>(arrays.factor);
    mine.sums = arrays.sums;
    mine.totals = arrays.totals;
    kernels<T>().shard_sums(p.task, params, mine, team, p.workspace());
  });
}

void shard_classify(const Batch& part, const ShardParams& params, const ShardClassify<void>& arrays,
                    int64_t* status, const Team& team) {
  with_real(part.dtype, [&](auto zero) {
    using T = decltype(zero);
    Part<T> p;
    const int64_t n = part.offsets[1], K = part.classes[0];
    ShardClassify<T> mine;
    mine.weights = static_cast<const T*>(arrays.weights);
    mine.probs = static_cast<T*>(arrays.probs);
    mine.predictions = arrays.predictions;
    mine.confidences = static_cast<T*>(arrays.confidences);
    std::fill_n(mine.predictions, n, kPadding);
    std::fill_n(mine.confidences, n, T(0));
    if (mine.probs) std::fill_n(mine.probs, n * K, T(0));
    if (!p.open(part, arrays.scale, arrays.mean, status)) return;
    mine.scale = p.worker.scale.data();
    kernels<T>().shard_classify(p.task, params, mine, status, team,
                                p.workspace(shard_lanes(p.task.samples()) * K * int64_t(sizeof(T))));
  });
}

}  // namespace tim_ext
