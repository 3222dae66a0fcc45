// pt_map on the CPU: a balanced assignment of the queries, and centres that follow it.
#include "cpu/task_pieces.h"

namespace tim_ext {
namespace {

std::tuple<Tensor, Tensor, Tensor> pt_map_cpu(const Tensor& features,  // [M, d]
                                              const Tensor& rows,      // [B, N]
                                              const Tensor& labels,    // [B, N]
                                              const std::string& steps,
                                              const std::optional<Tensor>& base_mean,  // [d]
                                              int64_t classes, double lam, double step, int64_t iterations,
                                              double tol) {
  const TaskArguments given("pt_map", features, rows, labels, steps, base_mean, classes);
  Tensor probs = given.new_probs(), weights = given.new_weights();
  given.with_type([&](auto zero) {
    using T = decltype(zero);
    PtMap<T> method;
    method.gather = given.gather<T>();
    method.lam = lam;
    method.step = step;
    method.iterations = iterations;
    method.tol = tol;
    method.out = given.outputs<T>(probs, weights);
    for_tasks(given, kernels<T>().pt_map_workspace(method),
              [&](int64_t task, void* work) { kernels<T>().pt_map(method, task, work); });
  });
  return {probs, weights, given.finite};
}

}  // namespace
}  // namespace tim_ext

STABLE_TORCH_LIBRARY_IMPL(tim_ext, CPU, m) { m.impl("pt_map", TORCH_BOX(&tim_ext::pt_map_cpu)); }
