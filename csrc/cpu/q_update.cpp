// q_update on the CPU: the assignments of TIM-ADM from log p.
#include "cpu/step_tensors.h"

namespace tim_ext {
namespace {

Tensor q_update_cpu(const Tensor& log_probs,  // [T, N, K]
                    const Tensor& labels,     // [T, N]
                    double alpha, double beta, double marginal_weight) {
  const TasksShape s = check_log_probs("q_update", log_probs);
  check_step_labels("q_update", labels, log_probs, s);
  Tensor q = new_tensor(log_probs, {s.tasks, s.samples, s.classes}, log_probs.scalar_type());
  with_type(log_probs, [&](auto zero) {
    using T = decltype(zero);
    for_pieces<T>(s, 1, [&](int64_t t, int64_t, void* work) {
      const int64_t at = t * s.samples * s.classes;
      kernels<T>().q_update(log_probs.const_data_ptr<T>() + at,
                            labels.const_data_ptr<int64_t>() + t * s.samples, step_shape(s),
                            T(1 + alpha / beta), T(marginal_weight / (marginal_weight + beta)),
                            q.mutable_data_ptr<T>() + at, work);
    });
  });
  return q;
}

}  // namespace
}  // namespace tim_ext

STABLE_TORCH_LIBRARY_IMPL(tim_ext, CPU, m) { m.impl("q_update", TORCH_BOX(&tim_ext::q_update_cpu)); }
