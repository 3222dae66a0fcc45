// distance_softmax on CUDA: p_ik = softmax_k(-tau/2 ||w_k - z_i||^2) and its logarithm; the work is in core/steps.cu.
#include "common/solve_tensors.h"
#include "cuda/device.h"

namespace tim_ext {
namespace {

std::tuple<Tensor, Tensor> distance_softmax_cuda(const Tensor& features,  // [T, N, d]
                                                 const Tensor& weights,   // [T, K, d]
                                                 double temperature) {
  const TasksShape s = check_step_features("distance_softmax", features, weights);
  const OnDeviceOf here(features);
  const std::vector<int64_t> shape = {s.tasks, s.samples, s.classes};
  Tensor probs = new_tensor(features, shape, features.scalar_type());
  Tensor log_probs = new_tensor(features, shape, features.scalar_type());
  with_type(features, [&](auto zero) {
    using T = decltype(zero);
    cuda::distance_softmax(features.const_data_ptr<T>(), weights.const_data_ptr<T>(),
                           {s.tasks, s.samples, s.classes, s.dim}, temperature, probs.mutable_data_ptr<T>(),
                           log_probs.mutable_data_ptr<T>(), here.stream());
  });
  return {probs, log_probs};
}

}  // namespace
}  // namespace tim_ext

STABLE_TORCH_LIBRARY_IMPL(tim_ext, CUDA, m) {
  m.impl("distance_softmax", TORCH_BOX(&tim_ext::distance_softmax_cuda));
}
