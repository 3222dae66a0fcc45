// q_update on CUDA: the assignments of TIM-ADM from log p; the work is in core/steps.cu.
#include "common/solve_tensors.h"
#include "cuda/device.h"

namespace tim_ext {
namespace {

Tensor q_update_cuda(const Tensor& log_probs,  // [T, N, K]
                     const Tensor& labels,     // [T, N]
                     double alpha, double beta, double marginal_weight) {
  const TasksShape s = check_log_probs("q_update", log_probs);
  check_step_labels("q_update", labels, log_probs, s);
  const OnDeviceOf here(log_probs);
  Tensor q = new_tensor(log_probs, {s.tasks, s.samples, s.classes}, log_probs.scalar_type());
  with_type(log_probs, [&](auto zero) {
    using T = decltype(zero);
    cuda::q_update(log_probs.const_data_ptr<T>(), labels.const_data_ptr<int64_t>(),
                   {s.tasks, s.samples, s.classes, s.dim}, 1 + alpha / beta,
                   marginal_weight / (marginal_weight + beta), q.mutable_data_ptr<T>(), here.stream());
  });
  return q;
}

}  // namespace
}  // namespace tim_ext

STABLE_TORCH_LIBRARY_IMPL(tim_ext, CUDA, m) { m.impl("q_update", TORCH_BOX(&tim_ext::q_update_cuda)); }
