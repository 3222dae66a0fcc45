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
        Task task;
        if (prepare_task(batch, t, place.classes_before, params.normalize, worker, task,
                         out.status + 3 * t)) {
          centre_task(worker, task);
          void* work = worker.solver.at_least(kernels<T>().gd_workspace(task, params));
          kernels<T>().gd_gradient(task, params, worker.scale.data(), mine, inner, work);
        } else {
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
