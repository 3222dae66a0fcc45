// adm_solve on the CPU: tensors in, tensors out; the work is in core/adm.cpp.
#include "common/solve_tensors.h"
#include "cpu/core/core.h"
#include "cpu/team.h"

namespace tim_ext {
namespace {

SolveResult adm_solve_cpu(const Tensor& features, const std::optional<Tensor>& rows, const Tensor& labels,
                          const Tensor& offsets, const Tensor& classes, double lam, double alpha, double beta,
                          double temperature, double marginal_weight, int64_t iterations, double tol,
                          bool normalize, const std::string& solver, int64_t probs_size, int64_t weights_rows,
                          bool history, const std::optional<Tensor>& class_prior) {
  STD_TORCH_CHECK(iterations >= 0, "adm_solve: iterations must be >= 0, got ", iterations);
  const Batch batch = check_batch("adm_solve", features, rows, labels, offsets, classes, class_prior,
                                  probs_size, weights_rows);
  const SolveResult result =
      new_result(batch, features, labels, probs_size, weights_rows, iterations, history);
  adm_solve(batch,
            {lam, alpha, beta, temperature, marginal_weight, iterations, tol, normalize, solver_of(solver)},
            outputs_of(result), torch_team());
  return result;
}

}  // namespace
}  // namespace tim_ext

STABLE_TORCH_LIBRARY_IMPL(tim_ext, CPU, m) { m.impl("adm_solve", TORCH_BOX(&tim_ext::adm_solve_cpu)); }
