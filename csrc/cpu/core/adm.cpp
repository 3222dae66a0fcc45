// A batch of TIM-ADM tasks: which form of the solver each task gets.
#include "cpu/core/batch.h"

namespace tim_ext {
namespace {

// Multiply-adds of the two forms, each weighted by how well it uses the machine.
double dual_cost(double n, double d, double k, double iterations) {
  return n * n * d / 2 * 1.3 + iterations * (n * n * (k - 1) + 40 * n * k);
}
double primal_cost(double n, double d, double k, double iterations) {
  return iterations * (2 * n * d * (k - 1) * 1.1 + 50 * n * k);
}
constexpr double kGramLimit = 256e6;  // bytes

template <class T>
void solve(const Batch& batch, const AdmParams& params, const Outputs& out, const Team& team) {
  struct Choice {
    bool dual;
    double cost;
  };
  auto choose = [&](int64_t samples, int64_t classes) {
    const double n = double(samples), d = double(batch.dim), k = double(classes),
                 i = double(params.iterations);
    const double dual = dual_cost(n, d, k, i), primal = primal_cost(n, d, k, i);
    const bool use_dual = params.solver == Solver::automatic
                              ? n * n * sizeof(T) <= kGramLimit && dual <= primal
                              : params.solver == Solver::dual;
    return Choice{use_dual, use_dual ? dual : primal};
  };
  solve_batch<T>(
      batch, params.iterations, params.normalize, out, team,
      [&](int64_t n, int64_t classes) { return choose(n, classes).cost; },
      [&](const Task& task, const T* scale, const TaskOutputs<T>& mine, Worker<T>& worker,
          const Team& inner) {
        const Kernels<T>& k = kernels<T>();
        // By the samples that count: padding must not change the result.
        const bool dual = choose(task.samples(), task.classes).dual;
        void* work = worker.solver.at_least((dual ? k.dual_workspace : k.primal_workspace)(task, params));
        (dual ? k.dual : k.primal)(task, params, scale, mine, inner, work);
      });
}

}  // namespace

void adm_solve(const Batch& batch, const AdmParams& params, const Outputs& outputs, const Team& team) {
  if (batch.dtype == Dtype::f64)
    solve<double>(batch, params, outputs, team);
  else
    solve<float>(batch, params, outputs, team);
}

}  // namespace tim_ext
