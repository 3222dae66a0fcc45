// w_update on CUDA: the next weights of TIM-ADM from p and the assignments; the work is in core/steps.cu.
#include "common/solve_tensors.h"
#include "cuda/device.h"

namespace tim_ext {
namespace {

Tensor w_update_cuda(const Tensor& features,     // [T, N, d]
                     const Tensor& weights,      // [T, K, d]
                     const Tensor& probs,        // [T, N, K]
                     const Tensor& assignments,  // [T, N, K]
                     const Tensor& labels,       // [T, N]
                     double lam, double alpha, double beta) {
  const TasksShape s = check_step_features("w_update", features, weights);
  check_step_probs("w_update", "probs", probs, features, s);
  check_step_probs("w_update", "assignments", assignments, features, s);
  check_step_labels("w_update", labels, features, s);
  const OnDeviceOf here(features);
  Tensor out = new_tensor(weights, {s.tasks, s.classes, s.dim}, features.scalar_type());
  with_type(features, [&](auto zero) {
    using T = decltype(zero);
    cuda::w_update(features.const_data_ptr<T>(), weights.const_data_ptr<T>(), probs.const_data_ptr<T>(),
                   assignments.const_data_ptr<T>(), labels.const_data_ptr<int64_t>(),
                   {s.tasks, s.samples, s.classes, s.dim}, lam / (beta + alpha), out.mutable_data_ptr<T>(),
                   here.stream());
  });
  return out;
}

}  // namespace
}  // namespace tim_ext

STABLE_TORCH_LIBRARY_IMPL(tim_ext, CUDA, m) { m.impl("w_update", TORCH_BOX(&tim_ext::w_update_cuda)); }
