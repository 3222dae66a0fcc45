// TIM-GD: Adam on W with the analytic gradient, and that gradient on its own. A block (or team of blocks) stays with a
// task for all steps: its features, W and Adam's moments stay in L2 and L1, and nothing is launched per step.
//
//   dL/dw_k = tau ( sum_i g_ik z_i - w_k sum_i g_ik )       g: see gd_gradient_rows
#pragma once

#include "cuda/core/adm_kernels.cuh"

namespace tim_ext {
namespace cuda {

template <class T>
struct GdMemory {
  TaskArrays<T> a;
  PrimalState<T> s;
  T *first, *second;  // Adam's moments, [K][pitch]
  AdamStep<T>* adam;  // of this step
  int64_t bytes;
};
template <class T>
__host__ __device__ GdMemory<T> take_gd_memory(void* start, int64_t N, int K, int64_t dim) {
  Arena arena(start);
  GdMemory<T> m{};
  m.a = take_arrays<T>(arena, N, K);
  m.s = take_primal<T>(arena, N, m.a.ld, K, dim);
  m.first = arena.take<T>(K * m.s.pitch);
  m.second = arena.take<T>(K * m.s.pitch);
  m.adam = arena.take<AdamStep<T>>(1);
  m.bytes = round_up(arena.used(), 256);
  return m;
}

// p, log p and the class sums at W; afterwards everything is visible.
template <class T>
__device__ void gd_probabilities(Team& team, const GdMemory<T>& m, const GdWeights<T>& c, bool compare,
                                 unsigned* moved) {
  primal_product(team, m.a, m.s, c.tau);
  softmax_rows(team, m.a, c.tau, compare, c.tol, moved);
  TIM_SYNC(team);
}

// g into x and its sums over samples into step; given(f) is f(inputs of the task).
template <class T, class Given>
__device__ void gd_weights_of_samples(Team& team, const GdMemory<T>& m, const GdWeights<T>& c, Given given) {
  given([&](const auto& in) { gd_gradient_rows(team, m.a, c, m.s.x, in); });
  TIM_SYNC(team);
  gd_class_totals(team, m.a, m.s.x);
  if (team.size > 1) TIM_SYNC(team);  // within a block, the barrier in accumulate_columns is enough
}

template <class T>
__device__ int64_t gd_iterate(Team& team, const GdMemory<T>& m, const GdWeights<T>& c, T* partial,
                              const Problem<T>& problem, const TaskEntry& task) {
  const TaskArrays<T>& a = m.a;
  const int64_t planned = has_queries<true>(problem, task, a.queries()) ? c.iterations : 0;
  auto given = [&](auto f) { with_inputs<true>(problem, task, a.n, T(0), f); };
  double power1 = 1, power2 = 1;  // beta^t, of one thread
  for (int64_t t = 0;; ++t) {
    const bool compare = c.tol > 0 && t > 0;
    gd_probabilities(team, m, c, compare, a.moved + t % 2);
    const bool stop = t == planned || (compare && a.moved[t % 2] == 0);
    if (stop && problem.history == nullptr) return t;
    if (team.thread() == 0) {
      a.moved[(t + 1) % 2] = 0;
      power1 *= c.adam_beta1;
      power2 *= c.adam_beta2;
      *m.adam = adam_step<T>(c.lr, power1, power2);
    }
    given([&](const auto& in) { gd_class_sums(team, a, c.marginal_weight, c.order, in); });
    TIM_SYNC(team);
    if (problem.history != nullptr && team.warp() == 0)
      given([&](const auto& in) {
        write_terms(a, c.order, history_of(problem, task, problem.history_terms) + problem.history_terms * t,
                    in);
      });
    if (stop) return t;
    gd_weights_of_samples(team, m, c, given);
    const T rate = m.adam->rate, correction = m.adam->correction;
    accumulate_columns(team, m.s.rows(), a.n, m.s.dim, m.s.x, a.ld, a.K, partial, m.s.sliced,
                       [&](int k, int64_t column, T sum) {
                         const int64_t at = k * m.s.pitch + column;
                         const T w = m.s.weights[at], gradient = (sum - w * a.step()[k]) * c.temperature;
                         const T first = m.first[at] + (gradient - m.first[at]) * c.adam.add_first;
                         const T second =
                             m.second[at] * c.adam.keep_second + gradient * gradient * c.adam.add_second;
                         m.first[at] = first;
                         m.second[at] = second;
                         m.s.weights[at] = w - first * rate / (sqrt(second) * correction + c.adam.eps);
                       });
    TIM_SYNC(team);
  }
}

template <class T>
__global__ void __launch_bounds__(kThreads, 1) gd_kernel(Problem<T> problem, GdWeights<T> c, Slots slots) {
  TIM_SHARED_MEMORY(memory);
  const PrimalShared<T> shared = take_primal_shared<T>(memory);
  for_tasks(problem, slots, shared.number,
            [&](Team& team, const TaskEntry& task, const TaskSamples& samples, void* slot) {
              GdMemory<T> m = take_gd_memory<T>(slot, task.samples, task.classes, problem.dim);
              bind_task(m.a, problem, task, samples);
              for (int64_t j = team.thread(); j < task.classes * m.s.pitch; j += team.threads())
                m.first[j] = m.second[j] = T(0);
              primal_start(team, m.a, m.s, rows_of(problem, task));
              TIM_SYNC(team);
              first_weights(team, m.a, m.s, mean_of(problem, task), start_of(problem, task));
              const int64_t iterations = gd_iterate(team, m, c, shared.partial, problem, task);
              write_results<true>(team, m.a, problem, task, iterations);
              primal_finish(team, m.s, problem, task);
            });
}

// Terms of the loss [T, 3] (in problem.history) and dL/dW (in problem.weights) at the weights problem.start.
template <class T>
__global__ void __launch_bounds__(kThreads, 1)
    gd_gradient_kernel(Problem<T> problem, GdWeights<T> c, Slots slots) {
  TIM_SHARED_MEMORY(memory);
  const PrimalShared<T> shared = take_primal_shared<T>(memory);
  for_tasks(problem, slots, shared.number,
            [&](Team& team, const TaskEntry& task, const TaskSamples& samples, void* slot) {
              GdMemory<T> m = take_gd_memory<T>(slot, task.samples, task.classes, problem.dim);
              bind_task(m.a, problem, task, samples);
              const int64_t at = task.first_class * problem.dim;
              primal_start(team, m.a, m.s, rows_of(problem, task));
              first_weights(team, m.a, m.s, mean_of(problem, task), start_of(problem, task));
              gd_probabilities(team, m, c, false, m.a.moved);
              const NoSampleInputs<T> in;
              gd_class_sums(team, m.a, c.marginal_weight, c.order, in);
              TIM_SYNC(team);
              if (team.warp() == 0) write_terms(m.a, c.order, history_of(problem, task, 3), in);
              gd_weights_of_samples(team, m, c, [&](auto f) { f(in); });
              T* const gradient = problem.weights + at;
              accumulate_columns(team, m.s.rows(), m.a.n, problem.dim, m.s.x, m.a.ld, m.a.K, shared.partial,
                                 m.s.sliced, [&](int k, int64_t column, T sum) {
                                   const T w = m.s.weights[k * m.s.pitch + column];
                                   gradient[k * problem.dim + column] =
                                       (sum - w * m.a.step()[k]) * c.temperature;
                                 });
            });
}

template <class T>
__global__ void __launch_bounds__(kThreads)
    sum_terms_kernel(const T* terms, int64_t tasks, GdCoefficients<T> c, T* loss) {
  const int64_t t = int64_t(blockIdx.x) * kThreads + threadIdx.x;
  if (t < tasks) loss[t] = loss_of(c, terms + 3 * t);
}

}  // namespace cuda
}  // namespace tim_ext
