// gd_gradient on CUDA: the loss of TIM and its gradient at given weights; the work is in core/gd.cu. A task that the CPU
// would refuse gets NaN: to raise here would mean to wait for the device.
#include "common/solve_tensors.h"
#include "cuda/device.h"

namespace tim_ext {
namespace {

std::tuple<Tensor, Tensor, Tensor> gd_gradient_cuda(const Tensor& features,  // [T, N, d]
                                                    const Tensor& weights,   // [T, K, d]
                                                    const Tensor& labels,    // [T, N]
                                                    double lam, double alpha, double temperature,
                                                    double marginal_weight, double entropy_order,
                                                    const std::optional<Tensor>& class_prior) {  // [T, K]
  const char* op = "gd_gradient";
  const TasksShape s = check_step_features(op, features, weights);
  check_step_labels(op, labels, features, s);
  const EqualTasks equal = equal_tasks(op, features, labels, s, class_prior);
  const ScalarType real = features.scalar_type();
  const OnDeviceOf here(features);
  Tensor loss = new_tensor(features, {s.tasks}, real), terms = new_tensor(features, {s.tasks, 3}, real);
  Tensor gradient = new_tensor(weights, {s.tasks, s.classes, s.dim}, real);
  const Tensor status = new_tensor(labels, {s.tasks, 3}, ScalarType::Long);
  const GdParams params = {lam, alpha, temperature, marginal_weight, entropy_order, 0, 0, 0, 0, 0, 0, false};
  const Tensor workspace = new_workspace(features, cuda::gd_workspace(equal.batch, params, here.device));
  cuda::gd_gradient(equal.batch, params, weights.const_data_ptr(), gradient.mutable_data_ptr(),
                    terms.mutable_data_ptr(), status.mutable_data_ptr<int64_t>(),
                    workspace.mutable_data_ptr(), here.device, here.stream());
  with_type(features, [&](auto zero) {
    using T = decltype(zero);
    cuda::sum_terms(terms.const_data_ptr<T>(), s.tasks, params, loss.mutable_data_ptr<T>(), here.stream());
  });
  return {loss, terms, gradient};
}

}  // namespace
}  // namespace tim_ext

STABLE_TORCH_LIBRARY_IMPL(tim_ext, CUDA, m) { m.impl("gd_gradient", TORCH_BOX(&tim_ext::gd_gradient_cuda)); }
