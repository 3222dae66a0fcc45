// bd_cspn on the CPU: prototypes rectified by the queries.
#include "cpu/task_pieces.h"

namespace tim_ext {
namespace {

std::tuple<Tensor, Tensor, Tensor> bd_cspn_cpu(const Tensor& features,  // [M, d]
                                               const Tensor& rows,      // [B, N]
                                               const Tensor& labels,    // [B, N]
                                               const std::string& steps,
                                               const std::optional<Tensor>& base_mean,  // [d]
                                               int64_t classes, double scale, double temperature) {
  const TaskArguments given("bd_cspn", features, rows, labels, steps, base_mean, classes);
  Tensor probs = given.new_probs(), weights = given.new_weights();
  given.with_type([&](auto zero) {
    using T = decltype(zero);
    BdCspn<T> method;
    method.gather = given.gather<T>();
    method.scale = scale;
    method.temperature = temperature;
    method.out = given.outputs<T>(probs, weights);
    for_tasks(given, kernels<T>().bd_cspn_workspace(method),
              [&](int64_t task, void* work) { kernels<T>().bd_cspn(method, task, work); });
  });
  return {probs, weights, given.finite};
}

}  // namespace
}  // namespace tim_ext

STABLE_TORCH_LIBRARY_IMPL(tim_ext, CPU, m) { m.impl("bd_cspn", TORCH_BOX(&tim_ext::bd_cspn_cpu)); }
