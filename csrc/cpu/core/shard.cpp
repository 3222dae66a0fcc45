// Part of a task: its samples in solver order, then half an iteration on them.
#include <utility>

#include "cpu/core/batch.h"

namespace tim_ext {
namespace {

constexpr int64_t kPieceRows = 4096;               // that one thread looks at
constexpr int64_t kKeptBytes = int64_t(32) << 20;  // of workspace that a thread keeps from call to call

template <class F>
void each_piece(const Team& team, int64_t samples, F f) {
  const int64_t pieces = (samples + kPieceRows - 1) / kPieceRows;
  auto piece = [&](int64_t j) { f(j, j * kPieceRows, std::min((j + 1) * kPieceRows, samples)); };
  if (team.threads > 1 && pieces > 1)
    team.parallel(pieces, [](void* p, int64_t j) { (*static_cast<decltype(piece)*>(p))(j); }, &piece);
  else
    for (int64_t j = 0; j < pieces; ++j) piece(j);
}

template <class T>
struct Part {
  // Kept from call to call: a pool comes in many parts, in every iteration, and fresh memory costs as much as the order.
  Worker<T>& worker;
  Task task;

  Part() : worker(kept()) {}
  ~Part() {
    if (worker.solver.size() > kKeptBytes) worker.solver = Buffer();
  }
  Part(const Part&) = delete;

  // Samples in solver order, and `scale`, which is in the caller's, with them. False if there is nothing to do.
  bool open(const Batch& part, const void* scale, const void* mean, int64_t* status, const Team& team) {
    status[0] = status[1] = status[2] = 0;
    if (!order(part, static_cast<const T*>(scale), status, team)) return false;
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

 private:
  struct Counts {
    int64_t support, query;
    bool bad;
  };

  static Worker<T>& kept() {
    thread_local Worker<T> worker;
    return worker;
  }

  // As order_samples, by all threads: support and queries are counted, then written where they belong.
  bool order(const Batch& part, const T* scale, int64_t* status, const Team& team) {
    const int64_t n = part.offsets[1], K = part.classes[0];
    const int64_t* const labels = part.labels;
    std::vector<Counts> counts(static_cast<size_t>((n + kPieceRows - 1) / kPieceRows));
    auto known = [K](int64_t label) { return label >= 0 && label < K; };
    auto bad = [known](int64_t label) { return !known(label) && label != kQuery && label != kPadding; };
    each_piece(team, n, [&](int64_t j, int64_t first, int64_t end) {
      Counts c{0, 0, false};
      for (int64_t i = first; i < end; ++i) {
        c.support += known(labels[i]);
        c.query += labels[i] == kQuery;
        c.bad |= bad(labels[i]);
      }
      counts[size_t(j)] = c;
    });
    int64_t support = 0, query = 0;
    for (size_t j = 0; j < counts.size(); ++j) {
      if (counts[j].bad) {
        const int64_t* wrong = std::find_if(labels + int64_t(j) * kPieceRows, labels + n, bad);
        return refuse(status, Status::label_out_of_range, wrong - labels, *wrong);
      }
      support += std::exchange(counts[j].support, support);
      query += std::exchange(counts[j].query, query);
    }
    const size_t samples = size_t(support + query);
    worker.rows.resize(samples);
    worker.labels.resize(samples);
    worker.scale.resize(samples);
    each_piece(team, n, [&](int64_t j, int64_t first, int64_t end) {
      int64_t next_support = counts[size_t(j)].support, next_query = support + counts[size_t(j)].query;
      for (int64_t i = first; i < end; ++i) {
        if (labels[i] == kPadding) continue;
        const size_t at = size_t(labels[i] == kQuery ? next_query++ : next_support++);
        worker.rows[at] = i;
        worker.labels[at] = static_cast<int32_t>(labels[i]);
        if (scale) worker.scale[at] = scale[i];
      }
    });
    task.dtype = part.dtype;
    task.features = part.features;
    task.dim = part.dim;
    task.rows = task.position = worker.rows.data();
    task.labels = worker.labels.data();
    task.support = support;
    task.query = query;
    task.classes = K;
    return true;
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
    if (!p.open(part, nullptr, nullptr, status, team)) return;
    const int64_t N = p.task.samples(), pieces = (N + kPieceRows - 1) / kPieceRows;
    std::vector<Rows> found(static_cast<size_t>(pieces));
    std::vector<int64_t> bad(static_cast<size_t>(pieces));
    each_piece(team, N, [&](int64_t piece, int64_t first, int64_t end) {
      Task rows = p.task;
      rows.rows += first;
      rows.support = 0;
      rows.query = end - first;
      found[size_t(piece)] =
          kernels<T>().measure_rows(rows, normalize, p.worker.scale.data() + first, &bad[size_t(piece)]);
    });
    int64_t worst = part.offsets[1];
    for (int64_t piece = 0; piece < pieces; ++piece) {
      if (found[size_t(piece)] == Rows::not_finite)
        worst = std::min(worst, p.worker.rows[size_t(piece * kPieceRows + bad[size_t(piece)])]);
      *extreme = *extreme || found[size_t(piece)] == Rows::extreme;
    }
    if (worst < part.offsets[1]) refuse(status, Status::features_not_finite, worst, 0);
    for (size_t i = 0; i < p.worker.scale.size(); ++i)
      static_cast<T*>(scale)[p.worker.rows[i]] = p.worker.scale[i];
  });
}

void shard_softmax(const Batch& part, const ShardParams& params, const ShardSoftmax<void>& arrays,
                   int64_t* status, const Team& team) {
  with_real(part.dtype, [&](auto zero) {
    using T = decltype(zero);
    Part<T> p;
    if (!p.open(part, arrays.scale, arrays.mean, status, team)) {
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
    if (!p.open(part, arrays.scale, arrays.mean, status, team)) {
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
    if (!p.open(part, arrays.scale, arrays.mean, status, team)) return;
    mine.scale = p.worker.scale.data();
    kernels<T>().shard_classify(p.task, params, mine, status, team,
                                p.workspace(shard_lanes(p.task.samples()) * K * int64_t(sizeof(T))));
  });
}

}  // namespace tim_ext
