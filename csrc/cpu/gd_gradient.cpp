// gd_gradient on the CPU: the loss of TIM and its gradient at given weights; the work is in core/gd.cpp.
#include "common/solve_tensors.h"
#include "cpu/core/core.h"
#include "cpu/team.h"

namespace tim_ext {
namespace {

std::tuple<Tensor, Tensor, Tensor> gd_gradient_cpu(const Tensor& features,  // [T, N, d]
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
  const int64_t tasks = s.tasks;
  Tensor loss = new_tensor(features, {tasks}, real), terms = new_tensor(features, {tasks, 3}, real);
  Tensor gradient = new_tensor(weights, {tasks, s.classes, s.dim}, real);
  std::vector<int64_t> status(size_t(tasks) * 3);
  const GdParams params = {lam, alpha, temperature, marginal_weight, entropy_order, 0, 0, 0, 0, 0, 0, false};
  gd_gradient(equal.batch, params, weights.const_data_ptr(), gradient.mutable_data_ptr(),
              terms.mutable_data_ptr(), status.data(), torch_team());
  for (int64_t t = 0; t < tasks; ++t)
    STD_TORCH_CHECK(status[size_t(t) * 3] == 0, op, ": task ", t,
                    " is refused: every class needs a support sample, labels must be below ", s.classes,
                    " and features finite");
  auto sum_terms = [&](auto* value, const auto* term) {
    using T = std::remove_reference_t<decltype(*value)>;
    for (int64_t t = 0; t < tasks; ++t)
      value[t] = T(lam) * term[3 * t] - T(marginal_weight) * term[3 * t + 1] + T(alpha) * term[3 * t + 2];
  };
  if (real == ScalarType::Double)
    sum_terms(loss.mutable_data_ptr<double>(), terms.const_data_ptr<double>());
  else
    sum_terms(loss.mutable_data_ptr<float>(), terms.const_data_ptr<float>());
  return {loss, terms, gradient};
}

}  // namespace
}  // namespace tim_ext

STABLE_TORCH_LIBRARY_IMPL(tim_ext, CPU, m) { m.impl("gd_gradient", TORCH_BOX(&tim_ext::gd_gradient_cpu)); }
