// Batches of TIM-GD tasks, and the gradient of TIM at given weights.
#include "cpu/core/wide.h"

namespace tim_ext {
namespace {

template <class T>
void solve(const Batch& batch, const GdParams& params, const Outputs& out, const Team& team) {
  solve_batch<T>(
      batch, params, out, team,
      [&](int64_t n, int64_t classes) {
        return double(params.iterations) * 2 * double(n) * double(batch.dim) * double(classes);
      },
      [&](Task& task, const TaskOutputs<T>& mine, Worker<T>& worker, const Team& inner) {
        if constexpr (sizeof(T) == 4)
          if (is_wide(task, params.temperature, params.normalize, worker))
            return solve_wide(task, params.iterations, mine, [&](const Batch& one, const Outputs& results) {
              solve<double>(one, params, results, inner);
            });
        centre_task(worker, task);
        void* work = worker.solver.at_least(kernels<T>().gd_workspace(task, params));
        kernels<T>().gd(task, params, worker.scale.data(), mine, inner, work);
      });
}

// A vector near the samples, where they are read too seldom for their mean to pay: that of a few of them.
template <class T>
void take_rough_mean(Worker<T>& w, Task& task) {
  constexpr int64_t kMost = 16;
  int64_t rows[kMost];
  Task few = task;
  few.rows = rows;
  few.support = 0;
  few.query = std::min(kMost, task.samples());
  for (int64_t j = 0; j < few.query; ++j) rows[j] = task.rows[j * task.samples() / few.query];
  take_mean(w, few);
  task.mean = few.mean;
}

// The gradient at the weights; false where features are not finite, which shows in it unless there is one class alone.
template <class T>
bool gradient_of(const Task& task, const GdParams& params, const TaskGradient<T>& at, Worker<T>& w,
                 const Team& team) {
  void* work = w.solver.at_least(kernels<T>().gd_workspace(task, params));
  const bool finite = kernels<T>().gd_gradient(task, params, w.scale.data(), at, team, work);
  int64_t bad;
  return (finite && task.classes > 1) ||
         kernels<T>().measure_rows(task, params.normalize, w.scale.data(), &bad) != Rows::not_finite;
}

// A task whose samples stay where they lie: they are read twice alone, the second time from a cache that they fit.
template <class T>
bool prepare_in_place(const Batch& batch, const Place& place, Worker<T>& w, Task& task, int64_t* status) {
  status[0] = status[1] = status[2] = 0;
  if (!arrange(batch, place.task, place.classes_before, w, task, status)) return false;
  w.scale.assign(w.rows.size(), T(1));
  take_rough_mean(w, task);
  task.centred_in_registers = true;
  return true;
}

template <class T>
void differentiate(const Batch& batch, const GdParams& params, const Gradient& out, const Team& team) {
  const GdCoefficients<T> c = gd_coefficients<T>(params);
  for_tasks<T>(
      batch, team, 1,
      [&](int64_t n, int64_t classes) { return 2 * double(n) * double(batch.dim) * double(classes); },
      [&](const Place& place, Worker<T>& worker, const Team& inner) {
        const int64_t t = place.task, at = place.classes_before * batch.dim;
        TaskGradient<T> mine;
        mine.weights = static_cast<const T*>(out.weights) + at;
        mine.gradient = static_cast<T*>(out.gradient) + at;
        mine.terms = static_cast<T*>(out.terms) + 3 * t;
        int64_t* const status = out.status + 3 * t;
        const bool in_place = !params.normalize && batch.dtype == (sizeof(T) == 4 ? Dtype::f32 : Dtype::f64);
        Task task;
        bool fine =
            in_place ? prepare_in_place(batch, place, worker, task, status)
                     : prepare_task(batch, t, place.classes_before, params.normalize, worker, task, status);
        if (fine) {
          if (!in_place) centre_task(worker, task);
          fine = gradient_of(task, params, mine, worker, inner) ||
                 refuse(status, Status::features_not_finite, -1, 0);
        }
        if (!fine) {
          const T nan = std::numeric_limits<T>::quiet_NaN();
          std::fill_n(mine.gradient, batch.classes[t] * batch.dim, nan);
          std::fill_n(mine.terms, 3, nan);
        }
        static_cast<T*>(out.loss)[t] = loss_of(c, mine.terms);
      });
}

}  // namespace

void gd_solve(const Batch& batch, const GdParams& params, const Outputs& outputs, const Team& team) {
  with_real(batch.dtype, [&](auto zero) { solve<decltype(zero)>(batch, params, outputs, team); });
}

void gd_gradient(const Batch& batch, const GdParams& params, const Gradient& out, const Team& team) {
  with_real(batch.dtype, [&](auto zero) { differentiate<decltype(zero)>(batch, params, out, team); });
}

}  // namespace tim_ext
