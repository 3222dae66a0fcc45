// A batch of TIM-ADM tasks: which form of the solver each task gets.
#include "cpu/core/wide.h"

namespace tim_ext {
namespace {

// Time of the two forms in units of a multiply-add of the product G C. The weights were fitted by search to the times of
// one thread (float32, AVX-512, Zen 4) on the grid of benchmarks/test_sweeps.py, whose report says how much `auto` loses on
// the machine at hand.
//   0.7   a multiply-add of the Gram matrix: it has more columns to use a loaded vector for than G C has
//   0.85  a multiply-add of the passes over the features
//   30 and 60, per sample and class: exponentials, sums and updates
//   16    a value of G or of the features in every pass, where they are more than a cache holds
constexpr double kCached = 24e6;  // bytes
template <class T>
double streaming(double values) {
  return values * sizeof(T) > kCached ? 16 * values : 0;
}
template <class T>
double dual_cost(double n, double d, double k, double iterations) {
  return 0.7 * n * n * d / 2 + iterations * (n * n * (k - 1) + 30 * n * k + streaming<T>(n * n));
}
template <class T>
double primal_cost(double n, double d, double k, double iterations) {
  return iterations * (0.85 * 2 * n * d * (k - 1) + 60 * n * k + 2 * streaming<T>(n * d));
}

template <class T>
void solve(const Batch& batch, const AdmParams& params, const Outputs& out, const Team& team) {
  struct Choice {
    bool dual;
    double cost;
  };
  auto choose = [&](int64_t samples, int64_t classes) {
    const double n = double(samples), d = double(batch.dim), k = double(classes),
                 i = double(params.iterations);
    double dual = dual_cost<T>(n, d, k, i), primal = primal_cost<T>(n, d, k, i);
    if (smooths(params)) {
      dual += 3 * n * n * n;
      primal += n * n * d + 500 * n * d;
    }
    // Weights that are not made of the samples have no coefficients: with a first W there is only the primal form.
    const Form form = batch.weights ? Form::primal : params.form;
    const bool use_dual =
        form == Form::automatic ? n * n * sizeof(T) <= kGramLimit && dual <= primal : form == Form::dual;
    return Choice{use_dual, use_dual ? dual : primal};
  };
  solve_batch<T>(
      batch, params, out, team, [&](int64_t n, int64_t classes) { return choose(n, classes).cost; },
      [&](Task& task, const TaskOutputs<T>& mine, Worker<T>& worker, const Team& inner) {
        if constexpr (sizeof(T) == 4)
          if (is_wide(task, params.temperature, params.normalize, worker))
            return solve_wide(task, params.iterations, mine, [&](const Batch& one, const Outputs& results) {
              AdmParams wide = params;
              wide.roots = false;  // they are taken
              solve<double>(one, wide, results, inner);
            });
        const Kernels<T>& k = kernels<T>();
        const double reach =
            smoothing_reach(params, double(task.support), double(task.samples()), double(task.classes));
        // By the samples that count: padding must not change the result.
        const bool dual = choose(task.samples(), task.classes).dual;
        if (dual) {
          check_product(task.samples(), task.samples());  // G
          task.smoothing = reach;
        } else if (reach > 0) {
          smooth_task(worker, task, reach, inner);
        } else {
          centre_task(worker, task);
        }
        void* work = worker.solver.at_least((dual ? k.dual_workspace : k.primal_workspace)(task, params));
        (dual ? k.dual : k.primal)(task, params, worker.scale.data(), mine, inner, work);
      });
}

}  // namespace

void adm_solve(const Batch& batch, const AdmParams& params, const Outputs& outputs, const Team& team) {
  with_real(batch.dtype, [&](auto zero) { solve<decltype(zero)>(batch, params, outputs, team); });
}

}  // namespace tim_ext
