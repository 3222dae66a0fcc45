// A batch of TIM-ADM tasks: checks each task, brings it into solver order, chooses the form of the solver and
// spreads the tasks over the team.
#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <limits>
#include <memory>
#include <new>
#include <numeric>
#include <vector>

#include "cpu/core/kernels.h"

namespace tim_ext {
namespace {

// Memory of one thread, kept from task to task.
class Buffer {
 public:
  void* at_least(int64_t bytes) {
    if (bytes > size_) {
      memory_.reset();
      size_ = (bytes + 63) / 64 * 64;
      memory_.reset(std::aligned_alloc(64, static_cast<size_t>(size_)));
      if (!memory_) throw std::bad_alloc();
    }
    return memory_.get();
  }

 private:
  struct Free {
    void operator()(void* p) const { std::free(p); }
  };
  std::unique_ptr<void, Free> memory_;
  int64_t size_ = 0;
};

template <class T>
struct Worker {
  Buffer solver, copy;
  std::vector<int64_t> rows, position;
  std::vector<int32_t> labels;
  std::vector<int64_t> seen;
  std::vector<T> scale;
};

// Samples of task t in solver order, or the reason to refuse it in status[3].
template <class T>
bool arrange(const AdmBatch& batch, int64_t t, Worker<T>& w, Task& task, int64_t* status) {
  auto refuse = [&](Status code, int64_t position, int64_t value) {
    status[0] = static_cast<int64_t>(code);
    status[1] = position;
    status[2] = value;
    return false;
  };
  const int64_t begin = batch.offsets[t], n = batch.offsets[t + 1] - begin, K = batch.classes[t];
  w.rows.clear();
  w.position.clear();
  w.labels.clear();
  w.seen.assign(static_cast<size_t>(K), 0);
  int64_t support = 0;
  for (bool queries : {false, true}) {
    for (int64_t i = 0; i < n; ++i) {
      const int64_t label = batch.labels[begin + i];
      if (label == kPadding || (label == kQuery) != queries) continue;
      if (label < kQuery || label >= K) return refuse(Status::label_out_of_range, i, label);
      const int64_t row = batch.rows ? batch.rows[begin + i] : begin + i;
      if (row < 0 || row >= batch.pool_rows) return refuse(Status::row_out_of_range, i, row);
      w.rows.push_back(row);
      w.position.push_back(i);
      w.labels.push_back(static_cast<int32_t>(label));
      if (!queries) {
        ++support;
        w.seen[static_cast<size_t>(label)] = 1;
      }
    }
  }
  if (support == 0) return refuse(Status::no_support, -1, 0);
  for (int64_t k = 0; k < K; ++k)
    if (!w.seen[static_cast<size_t>(k)]) return refuse(Status::class_without_support, -1, k);
  task = {batch.dtype,
          batch.features,
          batch.dim,
          w.rows.data(),
          w.position.data(),
          w.labels.data(),
          support,
          static_cast<int64_t>(w.rows.size()) - support,
          K};
  return true;
}

// Multiply-adds of the two forms, each weighted by how well it uses the machine.
double dual_cost(double n, double d, double k, double iterations) {
  return n * n * d / 2 * 1.3 + iterations * (n * n * (k - 1) + 40 * n * k);
}
double primal_cost(double n, double d, double k, double iterations) {
  return iterations * (2 * n * d * (k - 1) * 1.1 + 50 * n * k);
}
constexpr double kGramLimit = 256e6;  // bytes

template <class T>
bool prefers_dual(const AdmParams& p, int64_t samples, int64_t dim, int64_t classes) {
  if (p.solver != Solver::automatic) return p.solver == Solver::dual;
  const double n = double(samples), d = double(dim), k = double(classes), iterations = double(p.iterations);
  return n * n * sizeof(T) <= kGramLimit && dual_cost(n, d, k, iterations) <= primal_cost(n, d, k, iterations);
}

template <class T>
void solve_task(const AdmBatch& batch, const AdmParams& params, const AdmOutputs& out, int64_t t, int64_t probs_at,
                int64_t weights_at, Worker<T>& w, const Team& team) {
  const int64_t begin = batch.offsets[t], n = batch.offsets[t + 1] - begin, K = batch.classes[t];
  int64_t* status = out.status + 3 * t;
  status[0] = status[1] = status[2] = 0;
  out.iterations[t] = 0;
  TaskOutputs<T> mine = {
      out.probs ? static_cast<T*>(out.probs) + probs_at : nullptr, out.predictions + begin,
      out.weights ? static_cast<T*>(out.weights) + weights_at * batch.dim : nullptr,
      out.history ? static_cast<T*>(out.history) + t * (params.iterations + 1) * 3 : nullptr, out.iterations + t};
  std::fill_n(mine.predictions, n, kPadding);
  if (mine.history) std::fill_n(mine.history, (params.iterations + 1) * 3, std::numeric_limits<T>::quiet_NaN());

  Task task;
  Rows rows = Rows::not_finite;
  if (arrange(batch, t, w, task, status)) {
    w.scale.resize(w.rows.size());
    int64_t bad = 0;
    rows = kernels<T>().measure_rows(task, params.normalize, w.scale.data(), &bad);
    if (rows == Rows::not_finite) {
      status[0] = static_cast<int64_t>(Status::features_not_finite);
      status[1] = w.position[static_cast<size_t>(bad)];
    }
  }
  if (rows == Rows::not_finite) {
    if (mine.probs) std::fill_n(mine.probs, n * K, std::numeric_limits<T>::quiet_NaN());
    if (mine.weights) std::fill_n(mine.weights, K * batch.dim, std::numeric_limits<T>::quiet_NaN());
    return;
  }
  if (mine.probs && static_cast<int64_t>(w.rows.size()) < n) std::fill_n(mine.probs, n * K, T(0));  // padding
  if (rows == Rows::extreme && params.normalize) {
    // Solve a copy whose rows were brought to unit length with care.
    T* copy = static_cast<T*>(w.copy.at_least(task.samples() * task.dim * int64_t(sizeof(T))));
    kernels<T>().normalize_rows(task, copy);
    std::iota(w.rows.begin(), w.rows.end(), int64_t(0));
    std::fill(w.scale.begin(), w.scale.end(), T(1));
    task.features = copy;
    task.dtype = sizeof(T) == 4 ? Dtype::f32 : Dtype::f64;
  }
  const bool dual = prefers_dual<T>(params, task.samples(), task.dim, K);
  auto workspace = dual ? kernels<T>().dual_workspace : kernels<T>().primal_workspace;
  auto solve = dual ? kernels<T>().dual : kernels<T>().primal;
  solve(task, params, w.scale.data(), mine, team, w.solver.at_least(workspace(task, params)));
}

template <class T>
void solve_batch(const AdmBatch& batch, const AdmParams& params, const AdmOutputs& out, const Team& team) {
  const int64_t tasks = batch.tasks;
  // Where the results of each task go, and what it costs.
  std::vector<int64_t> probs_at(static_cast<size_t>(tasks)), weights_at(static_cast<size_t>(tasks));
  std::vector<double> cost(static_cast<size_t>(tasks));
  int64_t probs = 0, weights = 0;
  double total = 0;
  for (int64_t t = 0; t < tasks; ++t) {
    const int64_t n = batch.offsets[t + 1] - batch.offsets[t], K = batch.classes[t];
    const size_t s = static_cast<size_t>(t);
    probs_at[s] = probs;
    weights_at[s] = weights;
    probs += n * K;
    weights += K;
    const double dn = double(n), dd = double(batch.dim), dk = double(K), di = double(params.iterations);
    cost[s] = prefers_dual<T>(params, n, batch.dim, K) ? dual_cost(dn, dd, dk, di) : primal_cost(dn, dd, dk, di);
    total += cost[s];
  }
  std::vector<int64_t> order(static_cast<size_t>(tasks));
  std::iota(order.begin(), order.end(), int64_t(0));
  std::stable_sort(order.begin(), order.end(),
                   [&](int64_t a, int64_t b) { return cost[static_cast<size_t>(a)] > cost[static_cast<size_t>(b)]; });
  auto solve = [&](int64_t t, Worker<T>& worker, const Team& inner) {
    const size_t s = static_cast<size_t>(t);
    solve_task(batch, params, out, t, probs_at[s], weights_at[s], worker, inner);
  };

  // Tasks that are more than one thread's share run one after the other on all threads ...
  const double share = std::max(total / team.threads * 1.001, 2e7);
  size_t next = 0;
  if (team.threads > 1) {
    Worker<T> worker;
    for (; next < order.size() && cost[static_cast<size_t>(order[next])] > share; ++next)
      solve(order[next], worker, team);
  }
  // ... the others side by side, the heaviest first.
  const Team alone = {1, nullptr};
  const int64_t left = tasks - static_cast<int64_t>(next), workers = std::min<int64_t>(team.threads, left);
  std::atomic<int64_t> taken{static_cast<int64_t>(next)};
  auto work = [&] {
    Worker<T> worker;
    for (int64_t i; (i = taken.fetch_add(1)) < tasks;) solve(order[static_cast<size_t>(i)], worker, alone);
  };
  if (workers > 1)
    team.parallel(workers, [](void* w, int64_t) { (*static_cast<decltype(work)*>(w))(); }, &work);
  else
    work();
}

}  // namespace

void adm_solve(const AdmBatch& batch, const AdmParams& params, const AdmOutputs& outputs, const Team& team) {
  if (batch.dtype == Dtype::f64)
    solve_batch<double>(batch, params, outputs, team);
  else
    solve_batch<float>(batch, params, outputs, team);
}

}  // namespace tim_ext
