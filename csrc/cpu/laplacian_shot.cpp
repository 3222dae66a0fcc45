// laplacian_shot on the CPU: assignments smoothed over neighbouring queries.
#include "cpu/task_pieces.h"

namespace tim_ext {
namespace {

std::tuple<Tensor, Tensor, Tensor, Tensor> laplacian_shot_cpu(const Tensor& features,  // [M, d]
                                                              const Tensor& rows,      // [B, N]
                                                              const Tensor& labels,    // [B, N]
                                                              const std::string& steps,
                                                              const std::optional<Tensor>& base_mean,  // [d]
                                                              int64_t classes, bool rectify, double scale,
                                                              int64_t neighbors, double lam,
                                                              int64_t iterations, double tol) {
  const TaskArguments given("laplacian_shot", features, rows, labels, steps, base_mean, classes);
  STD_TORCH_CHECK(neighbors >= 1, given.op, ": neighbors must be >= 1, got ", neighbors);
  Tensor probs = given.new_probs(), weights = given.new_weights();
  Tensor ran = new_tensor(features, {given.shape.tasks}, ScalarType::Long);
  given.with_type([&](auto zero) {
    using T = decltype(zero);
    LaplacianShot<T> method;
    method.gather = given.gather<T>();
    method.rectify = rectify;
    method.scale = scale;
    method.neighbors = neighbors;
    method.lam = lam;
    method.iterations = iterations;
    method.tol = tol;
    method.ran = ran.mutable_data_ptr<int64_t>();
    method.out = given.outputs<T>(probs, weights);
    for_tasks(given, kernels<T>().laplacian_shot_workspace(method),
              [&](int64_t task, void* work) { kernels<T>().laplacian_shot(method, task, work); });
  });
  return {probs, weights, given.finite, ran};
}

}  // namespace
}  // namespace tim_ext

STABLE_TORCH_LIBRARY_IMPL(tim_ext, CPU, m) {
  m.impl("laplacian_shot", TORCH_BOX(&tim_ext::laplacian_shot_cpu));
}
