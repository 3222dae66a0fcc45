// w_update on the CPU: the next weights of TIM-ADM from p and the assignments.
#include "cpu/step_tensors.h"

namespace tim_ext {
namespace {

Tensor w_update_cpu(const Tensor& features,     // [T, N, d]
                    const Tensor& weights,      // [T, K, d]
                    const Tensor& probs,        // [T, N, K]
                    const Tensor& assignments,  // [T, N, K]
                    const Tensor& labels,       // [T, N]
                    double lam, double alpha, double beta) {
  const TasksShape s = check_step_features("w_update", features, weights);
  const ScalarType real = features.scalar_type();
  check_step_probs("w_update", "probs", probs, features, s);
  check_step_probs("w_update", "assignments", assignments, features, s);
  check_step_labels("w_update", labels, features, s);
  Tensor out = new_tensor(weights, {s.tasks, s.classes, s.dim}, real);
  constexpr int64_t columns = 192;  // of W, per piece
  with_type(features, [&](auto zero) {
    using T = decltype(zero);
    for_pieces<T>(s, (s.dim + columns - 1) / columns, [&](int64_t t, int64_t piece, void* work) {
      const int64_t c0 = piece * columns, nk = t * s.samples * s.classes, kd = t * s.classes * s.dim;
      kernels<T>().w_update(
          features.const_data_ptr<T>() + t * s.samples * s.dim, weights.const_data_ptr<T>() + kd,
          probs.const_data_ptr<T>() + nk, assignments.const_data_ptr<T>() + nk,
          labels.const_data_ptr<int64_t>() + t * s.samples, step_shape(s), T(lam / (beta + alpha)), c0,
          std::min(columns, s.dim - c0), out.mutable_data_ptr<T>() + kd, work);
    });
  });
  return out;
}

}  // namespace
}  // namespace tim_ext

STABLE_TORCH_LIBRARY_IMPL(tim_ext, CPU, m) { m.impl("w_update", TORCH_BOX(&tim_ext::w_update_cpu)); }
