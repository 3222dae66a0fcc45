// A batch of tasks, whatever the solver: checks each task, brings it into solver order and spreads the tasks over
// the team.
#pragma once

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cmath>
#include <limits>
#include <new>
#include <numeric>
#include <thread>
#include <vector>

#include "cpu/core/buffer.h"
#include "cpu/core/kernels.h"

namespace tim_ext {

template <class T>
struct Worker {
  Buffer solver, copy;
  std::vector<int64_t> rows, position;
  std::vector<int32_t> labels;
  std::vector<int64_t> seen;
  std::vector<T> scale, mean;
  std::vector<double> total;
};

// Bytes of a centred copy of a task's samples, at most. Beyond it, passes over the samples centre them block by block.
constexpr int64_t kCentredCopy = 64 << 20;

inline int64_t padded_dim(int64_t dim) { return round_up(dim, 16); }  // to 64 bytes of any type

inline bool refuse(int64_t* status, Status code, int64_t position, int64_t value) {
  status[0] = static_cast<int64_t>(code);
  status[1] = position;
  status[2] = value;
  return false;
}

// Arrays of a x b numbers, of which a workspace is made, must have sizes that fit int64: no machine holds 2^55 numbers.
inline void check_product(int64_t a, int64_t b) {
  if (double(a) * double(b) > 0x1p55) throw std::bad_alloc();
}

// Samples of task t in solver order, or the reason to refuse it in status[3]. Classes may lack support.
template <class T>
bool order_samples(const Batch& batch, int64_t t, int64_t classes_before, Worker<T>& w, Task& task,
                   int64_t* status) {
  const int64_t begin = batch.offsets[t], n = batch.offsets[t + 1] - begin, K = batch.classes[t];
  w.rows.clear();
  w.position.clear();
  w.labels.clear();
  // One of the first n + 1 classes lacks support if there are so many: no need to look at more.
  w.seen.assign(static_cast<size_t>(K <= n ? K : n + 1), 0);
  int64_t support = 0;
  for (bool queries : {false, true}) {
    for (int64_t i = 0; i < n; ++i) {
      const int64_t label = batch.labels[begin + i];
      if (label == kPadding || (label == kQuery) != queries) continue;
      if (label < kQuery || label >= K) return refuse(status, Status::label_out_of_range, i, label);
      const int64_t row = batch.rows ? batch.rows[begin + i] : begin + i;
      if (row < 0 || row >= batch.pool_rows) return refuse(status, Status::row_out_of_range, i, row);
      w.rows.push_back(row);
      w.position.push_back(i);
      w.labels.push_back(static_cast<int32_t>(label));
      if (!queries) {
        ++support;
        if (label <= n) w.seen[static_cast<size_t>(label)] = 1;
      }
    }
  }
  task.dtype = batch.dtype;
  task.features = batch.features;
  task.dim = batch.dim;
  task.rows = w.rows.data();
  task.position = w.position.data();
  task.labels = w.labels.data();
  task.support = support;
  task.query = static_cast<int64_t>(w.rows.size()) - support;
  task.classes = K;
  task.class_prior = batch.class_prior ? batch.class_prior + classes_before : nullptr;
  task.weights = batch.weights ? static_cast<const T*>(batch.weights) + classes_before * batch.dim : nullptr;
  return true;
}

// The same for a task that is whole: every class has support.
template <class T>
bool arrange(const Batch& batch, int64_t t, int64_t classes_before, Worker<T>& w, Task& task,
             int64_t* status) {
  if (!order_samples(batch, t, classes_before, w, task, status)) return false;
  if (task.support == 0) return refuse(status, Status::no_support, -1, 0);
  for (size_t k = 0; k < w.seen.size(); ++k)
    if (!w.seen[k]) return refuse(status, Status::class_without_support, -1, int64_t(k));
  check_product(task.samples(), task.classes);
  check_product(task.classes, task.dim);
  return true;
}

// Features replaced by a copy [N, dim] in the type computed in, whose scale is 1.
template <class T>
void use_copy(Worker<T>& w, Task& task, T* copy) {
  std::iota(w.rows.begin(), w.rows.end(), int64_t(0));
  std::fill(w.scale.begin(), w.scale.end(), T(1));
  task.features = copy;
  task.dtype = sizeof(T) == 4 ? Dtype::f32 : Dtype::f64;
}

// Whether the first weights of a task are finite, or there are none; else the class of the first that is not.
template <class T>
bool finite_weights(const Task& task, int64_t* wrong) {
  const T* const w = static_cast<const T*>(task.weights);
  for (int64_t j = 0; w && j < task.classes * task.dim; ++j)
    if (!std::isfinite(w[j])) {
      *wrong = j / task.dim;
      return false;
    }
  return true;
}

// The mean of the samples. Whether it is finite: then every feature is, as NaN and Inf outlive any sum.
template <class T>
bool take_mean(Worker<T>& w, Task& task) {
  w.total.resize(static_cast<size_t>(task.dim));
  w.mean.resize(static_cast<size_t>(padded_dim(task.dim)));
  kernels<T>().mean_row(task, w.scale.data(), w.total.data(), w.mean.data());
  task.mean = w.mean.data();
  return std::all_of(w.mean.begin(), w.mean.begin() + task.dim, [](T value) { return std::isfinite(value); });
}

// A task ready to solve: its rows measured, extreme ones replaced by a copy of unit length, and their mean; or refused.
template <class T>
bool prepare_task(const Batch& batch, int64_t t, int64_t classes_before, bool normalize, Worker<T>& w,
                  Task& task, int64_t* status, bool roots = false) {
  status[0] = status[1] = status[2] = 0;
  if (!arrange(batch, t, classes_before, w, task, status)) return false;
  w.scale.resize(w.rows.size());
  if (roots) {
    T* copy = static_cast<T*>(w.copy.at_least(task.samples() * task.dim * int64_t(sizeof(T))));
    if (kernels<T>().root_rows(task, copy)) use_copy(w, task, copy);
  }
  int64_t bad = 0;
  bool centre_known = false;
  if (!normalize) {  // then lengths are of no use, and the mean tells whether rows must be looked at one by one
    std::fill(w.scale.begin(), w.scale.end(), T(1));
    centre_known = take_mean(w, task);
  }
  const Rows rows =
      centre_known ? Rows::ordinary : kernels<T>().measure_rows(task, normalize, w.scale.data(), &bad);
  if (rows == Rows::not_finite)
    return refuse(status, Status::features_not_finite, w.position[static_cast<size_t>(bad)], 0);
  if (!finite_weights<T>(task, &bad)) return refuse(status, Status::weights_not_finite, -1, bad);
  if (rows == Rows::extreme && normalize) {
    T* copy = static_cast<T*>(w.copy.at_least(task.samples() * task.dim * int64_t(sizeof(T))));
    kernels<T>().normalize_rows(task, copy);
    use_copy(w, task, copy);
  }
  if (!centre_known) take_mean(w, task);
  return true;
}

// For solvers that read the samples in every iteration: centred once, if the copy is not too large.
template <class T>
void centre_task(Worker<T>& w, Task& task) {
  const int64_t bytes = task.samples() * task.dim * int64_t(sizeof(T));
  if (bytes > kCentredCopy) return;
  T* copy = static_cast<T*>(w.copy.at_least(bytes));
  kernels<T>().centre_rows(task, w.scale.data(), copy);
  use_copy(w, task, copy);
  task.centred = true;
}

// Samples smoothed over their neighbour graph, once, and centred: a copy [N, dim] of any size.
template <class T>
void smooth_task(Worker<T>& w, Task& task, double reach, const Team& team) {
  const Kernels<T>& k = kernels<T>();
  const SmoothingMemory memory = k.smoothing_memory(task, team);
  Buffer smoothed;
  T* copy = static_cast<T*>(smoothed.at_least(memory.elements * int64_t(sizeof(T))));
  std::vector<T> shift(static_cast<size_t>(task.dim));
  k.smooth_rows(task, reach, w.scale.data(), copy, shift.data(), team, w.solver.at_least(memory.bytes));
  std::swap(w.copy, smoothed);  // which may hold the rows that were smoothed
  use_copy(w, task, copy);
  k.mean_row(task, w.scale.data(), w.total.data(), w.mean.data());
  k.centre_rows(task, w.scale.data(), copy);
  task.centred = true;
  for (size_t j = 0; j < shift.size(); ++j) w.mean[j] += shift[j];  // W gets both back
}

// Where the results of a task go in the flat outputs.
struct Place {
  int64_t task = 0, samples_before = 0, probs_before = 0, classes_before = 0;
};

// work(place, worker, team) for every task of the batch. cost(n, K) is in multiply-adds, done in `rounds` rounds
// between which the threads of a team would wait for each other. The team pauses between tasks and within long ones.
template <class T, class Cost, class Work>
void for_tasks(const Batch& batch, const Team& team, int64_t rounds, Cost cost, Work work) {
  const int64_t tasks = batch.tasks;
  std::vector<Place> order;
  std::vector<double> costs;
  order.reserve(static_cast<size_t>(tasks));
  costs.reserve(static_cast<size_t>(tasks));
  double total = 0;
  int64_t probs = 0, classes = 0;
  for (int64_t t = 0; t < tasks; ++t) {
    const int64_t n = batch.offsets[t + 1] - batch.offsets[t], K = batch.classes[t];
    Place place;
    place.task = t;
    place.samples_before = batch.offsets[t];
    place.probs_before = probs;
    place.classes_before = classes;
    order.push_back(place);
    costs.push_back(cost(n, K));
    probs += n * K;
    classes += K;
    total += costs.back();
  }
  auto cost_of = [&](const Place& place) { return costs[static_cast<size_t>(place.task)]; };
  std::stable_sort(order.begin(), order.end(),
                   [&](const Place& a, const Place& b) { return cost_of(a) > cost_of(b); });

  // Tasks that are more than one thread's share run one after the other on all threads ...
  constexpr double kWorthSharing = 4e6;  // multiply-adds per round: about 0.1 ms
  const double share = std::max(total / team.threads * 1.001, kWorthSharing * double(rounds + 1));
  size_t next = 0;
  if (team.threads > 1) {
    Worker<T> worker;
    for (; next < order.size() && cost_of(order[next]) > share; ++next) work(order[next], worker, team);
  }
  // ... the others side by side, the heaviest first.
  constexpr double kLong = 1e8;  // multiply-adds: some milliseconds
  const Team quick = {1, nullptr}, patient = {1, nullptr, team.pause, team.asked};
  const int64_t workers = std::min<int64_t>(team.threads, tasks - static_cast<int64_t>(next));
  const bool waits = team.pause && workers > 1 && cost_of(order[next]) > kLong;
  std::atomic<size_t> taken{next};
  std::atomic<int64_t> busy{0};
  auto take_tasks = [&] {
    Worker<T> worker;
    for (size_t i; (i = taken.fetch_add(1)) < order.size();) {
      if (team.pause) team.pause(team.asked);
      work(order[i], worker, cost_of(order[i]) > kLong ? patient : quick);
    }
  };
  auto loop = [&] {
    struct Busy {
      std::atomic<int64_t>& count;
      explicit Busy(std::atomic<int64_t>& c) : count(c) { ++count; }
      ~Busy() { --count; }
    };
    {
      const Busy busy_here(busy);
      take_tasks();
    }
    // Signals reach the calling thread alone: it must not sleep where it cannot be asked.
    while (waits && busy > 0) {
      team.pause(team.asked);
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
  };
  if (workers > 1)
    team.parallel(workers, [](void* l, int64_t) { (*static_cast<decltype(loop)*>(l))(); }, &loop);
  else
    loop();
}

// What is given for the samples of a task.
template <class T>
void take_sample_inputs(const Batch& batch, const Place& place, Task& task) {
  if (batch.sample_log_prior)
    task.sample_log_prior = static_cast<const T*>(batch.sample_log_prior) + place.probs_before;
  if (!batch.sample_weight) return;
  const T* const weight = static_cast<const T*>(batch.sample_weight) + place.samples_before;
  double total = 0;
  for (int64_t i = task.support; i < task.samples(); ++i) total += double(weight[task.position[i]]);
  task.sample_weight = weight;
  task.weight_scale = sample_weight_scale(double(task.query), total);
}

inline bool takes_roots(const AdmParams& params) { return params.roots; }
inline bool takes_roots(const GdParams&) { return false; }

// Solves every task: solve(task, outputs of the task, worker, team). Refused tasks get NaN.
template <class T, class Params, class Cost, class Solve>
void solve_batch(const Batch& batch, const Params& params, const Outputs& out, const Team& team, Cost cost,
                 Solve solve) {
  const int64_t iterations = params.iterations, history_size = (iterations + 1) * history_terms(batch);
  const bool normalize = params.normalize;
  const double marginal_weight = params.marginal_weight;
  for_tasks<T>(batch, team, iterations, cost, [&](const Place& place, Worker<T>& worker, const Team& inner) {
    const int64_t t = place.task, n = batch.offsets[t + 1] - batch.offsets[t], K = batch.classes[t];
    const T nan = std::numeric_limits<T>::quiet_NaN();
    TaskOutputs<T> mine;
    if (out.probs) mine.probs = static_cast<T*>(out.probs) + place.probs_before;
    mine.predictions = out.predictions + place.samples_before;
    if (out.weights) mine.weights = static_cast<T*>(out.weights) + place.classes_before * batch.dim;
    if (out.history) mine.history = static_cast<T*>(out.history) + t * history_size;
    if (out.proportions) mine.proportions = static_cast<T*>(out.proportions) + place.classes_before;
    mine.marginal_weight = static_cast<T*>(out.marginal_weights) + t;
    *mine.marginal_weight = T(marginal_weight);
    mine.iterations = out.iterations + t;
    mine.status = out.status + 3 * t;
    *mine.iterations = 0;
    std::fill_n(mine.predictions, n, kPadding);
    if (mine.history) std::fill_n(mine.history, history_size, nan);
    Task task;
    if (!prepare_task(batch, t, place.classes_before, normalize, worker, task, out.status + 3 * t,
                      takes_roots(params))) {
      if (mine.probs) std::fill_n(mine.probs, n * K, nan);
      if (mine.weights) std::fill_n(mine.weights, K * batch.dim, nan);
      if (mine.proportions) std::fill_n(mine.proportions, K, nan);
      *mine.marginal_weight = nan;
      return;
    }
    take_sample_inputs<T>(batch, place, task);
    if (mine.probs && task.samples() < n) std::fill_n(mine.probs, n * K, T(0));  // padding
    solve(task, mine, worker, inner);
  });
}

}  // namespace tim_ext
