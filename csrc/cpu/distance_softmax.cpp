// distance_softmax on the CPU: p_ik = softmax_k(-tau/2 ||w_k - z_i||^2) and its logarithm.
#include "cpu/step_tensors.h"

namespace tim_ext {
namespace {

std::tuple<Tensor, Tensor> distance_softmax_cpu(const Tensor& features,  // [T, N, d]
                                                const Tensor& weights,   // [T, K, d]
                                                double temperature) {
  const TasksShape s = check_step_features("distance_softmax", features, weights);
  const std::vector<int64_t> shape = {s.tasks, s.samples, s.classes};
  Tensor probs = new_tensor(features, shape, features.scalar_type());
  Tensor log_probs = new_tensor(features, shape, features.scalar_type());
  with_type(features, [&](auto zero) {
    using T = decltype(zero);
    for_pieces<T>(s, (s.samples + kStepRows - 1) / kStepRows, [&](int64_t t, int64_t piece, void* work) {
      const int64_t i0 = piece * kStepRows, out = t * s.samples * s.classes;
      kernels<T>().distance_softmax(features.const_data_ptr<T>() + t * s.samples * s.dim,
                                    weights.const_data_ptr<T>() + t * s.classes * s.dim, step_shape(s),
                                    T(temperature), i0, std::min(kStepRows, s.samples - i0),
                                    probs.mutable_data_ptr<T>() + out, log_probs.mutable_data_ptr<T>() + out,
                                    work);
    });
  });
  return {probs, log_probs};
}

}  // namespace
}  // namespace tim_ext

STABLE_TORCH_LIBRARY_IMPL(tim_ext, CPU, m) {
  m.impl("distance_softmax", TORCH_BOX(&tim_ext::distance_softmax_cpu));
}
