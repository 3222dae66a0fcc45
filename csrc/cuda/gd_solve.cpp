// gd_solve on CUDA: tensors in, tensors out; the work is in core/gd.cu.
#include "common/solve_tensors.h"
#include "cuda/device.h"

namespace tim_ext {
namespace {

SolveResult gd_solve_cuda(const Tensor& features, const std::optional<Tensor>& rows, const Tensor& labels,
                          const Tensor& offsets, const Tensor& classes, double lam, double alpha,
                          double temperature, double marginal_weight, double entropy_order,
                          int64_t iterations, double lr, double adam_beta1, double adam_beta2, double eps,
                          double tol, bool normalize, int64_t probs_size, int64_t weights_rows, bool history,
                          const std::optional<Tensor>& class_prior) {
  STD_TORCH_CHECK(iterations >= 0, "gd_solve: iterations must be >= 0, got ", iterations);
  const Batch batch = check_batch("gd_solve", features, rows, labels, offsets, classes, class_prior,
                                  probs_size, weights_rows);
  const OnDeviceOf here(features);
  const SolveResult result =
      new_result(batch, features, labels, probs_size, weights_rows, iterations, history);
  const GdParams params = {lam,           alpha,      temperature, marginal_weight,
                           entropy_order, iterations, lr,          adam_beta1,
                           adam_beta2,    eps,        tol,         normalize};
  const Tensor workspace = new_workspace(features, cuda::gd_workspace(batch, params, here.device));
  cuda::gd_solve(batch, params, outputs_of(result), workspace.mutable_data_ptr(), here.device, here.stream());
  return result;
}

}  // namespace
}  // namespace tim_ext

STABLE_TORCH_LIBRARY_IMPL(tim_ext, CUDA, m) { m.impl("gd_solve", TORCH_BOX(&tim_ext::gd_solve_cuda)); }
