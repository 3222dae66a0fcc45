// adm_solve on CUDA: tensors in, tensors out; the work is in core/adm.cu.
#include "common/solve_tensors.h"
#include "cuda/device.h"

namespace tim_ext {
namespace {

SolveResult adm_solve_cuda(const Tensor& features, const std::optional<Tensor>& rows, const Tensor& labels,
                           const Tensor& offsets, const Tensor& classes, double lam, double alpha,
                           double beta, double temperature, double marginal_weight, int64_t iterations,
                           double tol, bool normalize, const std::string& solver, int64_t probs_size,
                           int64_t weights_rows, bool history, const std::optional<Tensor>& class_prior) {
  STD_TORCH_CHECK(iterations >= 0, "adm_solve: iterations must be >= 0, got ", iterations);
  const Batch batch = check_batch("adm_solve", features, rows, labels, offsets, classes, class_prior,
                                  probs_size, weights_rows);
  const OnDeviceOf here(features);
  const SolveResult result =
      new_result(batch, features, labels, probs_size, weights_rows, iterations, history);
  const AdmParams params = {lam,        alpha, beta,      temperature,      marginal_weight,
                            iterations, tol,   normalize, solver_of(solver)};
  const Tensor workspace = new_workspace(features, cuda::adm_workspace(batch, params, here.device));
  cuda::adm_solve(batch, params, outputs_of(result), workspace.mutable_data_ptr(), here.device,
                  here.stream());
  return result;
}

}  // namespace
}  // namespace tim_ext

STABLE_TORCH_LIBRARY_IMPL(tim_ext, CUDA, m) { m.impl("adm_solve", TORCH_BOX(&tim_ext::adm_solve_cuda)); }
