// Batches of TIM-GD tasks, and the gradient of TIM at given weights.
#include "cpu/core/batch.h"

namespace tim_ext {
namespace {

template <class T>
void solve(const Batch& batch, const GdParams& params, const Outputs& out, const Team& team) {
  solve_batch<T>(
      batch, params.iterations, params.normalize, out, team,
      [&](int64_t n, int64_t classes) {
        return double(params.iterations) * double(2 * n * batch.dim) * double(classes);
      },
      [&](const Task& task, const T* scale, const TaskOutputs<T>& mine, Worker<T>& worker,
          const Team& inner) {
        void* work = worker.solver.at_least(kernels<T>().gd_workspace(task, params));
        kernels<T>().gd(task, params, scale, mine, inner, work);
      });
}

template <class T>
void differentiate(const Batch& batch, const GdParams& params, const T* weights, T* gradient, T* terms,
                   int64_t* status, const Team& team) {
  for_tasks<T>(
      batch, team, 1, [&](int64_t n, int64_t classes) { return double(2 * n * batch.dim) * double(classes); },
      [&](const Place& place, Worker<T>& worker, const Team& inner) {
        const int64_t at = place.classes_before * batch.dim;
        Task task;
        if (!prepare_task(batch, place.task, place.classes_before, params.normalize, worker, task,
                          status + 3 * place.task)) {
          const T nan = std::numeric_limits<T>::quiet_NaN();
          std::fill_n(gradient + at, batch.classes[place.task] * batch.dim, nan);
          std::fill_n(terms + 3 * place.task, 3, nan);
          return;
        }
        void* work = worker.solver.at_least(kernels<T>().gd_workspace(task, params));
        kernels<T>().gd_gradient(task, params, worker.scale.data(), weights + at, gradient + at,
                                 terms + 3 * place.task, inner, work);
      });
}

}  // namespace

void gd_solve(const Batch& batch, const GdParams& params, const Outputs& outputs, const Team& team) {
  if (batch.dtype == Dtype::f64)
    solve<double>(batch, params, outputs, team);
  else
    solve<float>(batch, params, outputs, team);
}

void gd_gradient(const Batch& batch, const GdParams& params, const void* weights, void* gradient, void* terms,
                 int64_t* status, const Team& team) {
  if (batch.dtype == Dtype::f64)
    differentiate(batch, params, static_cast<const double*>(weights), static_cast<double*>(gradient),
                  static_cast<double*>(terms), status, team);
  else
    differentiate(batch, params, static_cast<const float*>(weights), static_cast<float*>(gradient),
                  static_cast<float*>(terms), status, team);
}

}  // namespace tim_ext
