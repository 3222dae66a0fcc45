// adm_solve on the CPU: tensors in, tensors out; the work is in core/adm.cpp.
#include "common/torch_abi.h"
#include "cpu/core/core.h"
#include "cpu/team.h"

namespace tim_ext {
namespace {

using Outputs = std::tuple<Tensor, Tensor, Tensor, Tensor, Tensor, Tensor>;

Dtype dtype_of(const Tensor& features) {
  switch (features.scalar_type()) {
    case ScalarType::Float:
      return Dtype::f32;
    case ScalarType::Double:
      return Dtype::f64;
    case ScalarType::Half:
      return Dtype::f16;
    case ScalarType::BFloat16:
      return Dtype::bf16;
    default:
      STD_TORCH_CHECK(false, "adm_solve: features must be float32, float64, float16 or bfloat16, got ",
                      torch::headeronly::toString(features.scalar_type()));
  }
}

Solver solver_of(const std::string& name) {
  STD_TORCH_CHECK(name == "auto" || name == "dual" || name == "primal",
                  "adm_solve: solver must be 'auto', 'dual' or 'primal', got '", name, "'");
  return name == "auto" ? Solver::automatic : name == "dual" ? Solver::dual : Solver::primal;
}

Outputs adm_solve_cpu(const Tensor& features,             // [M, d]
                      const std::optional<Tensor>& rows,  // [R]
                      const Tensor& labels,               // [R]
                      const Tensor& offsets,              // [T + 1]
                      const Tensor& classes,              // [T]
                      double lam, double alpha, double beta, double temperature, double marginal_weight,
                      int64_t iterations, double tol, bool normalize, const std::string& solver, int64_t probs_size,
                      int64_t weights_rows, bool history) {
  const char* op = "adm_solve";
  const Dtype dtype = dtype_of(features);
  check_tensor(op, "features", features, features.scalar_type(), {-1, -1});
  check_tensor(op, "labels", labels, ScalarType::Long, {-1});
  const int64_t samples = labels.size(0), dim = features.size(1);
  if (rows) check_tensor(op, "rows", *rows, ScalarType::Long, {samples});
  check_tensor(op, "classes", classes, ScalarType::Long, {-1});
  const int64_t tasks = classes.size(0);
  check_tensor(op, "offsets", offsets, ScalarType::Long, {tasks + 1});
  STD_TORCH_CHECK(dim > 0, "adm_solve: features must have at least one column");
  STD_TORCH_CHECK(iterations >= 0, "adm_solve: iterations must be >= 0, got ", iterations);

  const AdmBatch batch = {dtype,
                          features.const_data_ptr(),
                          features.size(0),
                          dim,
                          rows ? rows->const_data_ptr<int64_t>() : nullptr,
                          labels.const_data_ptr<int64_t>(),
                          offsets.const_data_ptr<int64_t>(),
                          classes.const_data_ptr<int64_t>(),
                          tasks};
  int64_t probs_needed = 0, weights_needed = 0;
  STD_TORCH_CHECK(batch.offsets[0] == 0 && batch.offsets[tasks] == samples,
                  "adm_solve: offsets must run from 0 to the number of labels (", samples, ")");
  for (int64_t t = 0; t < tasks; ++t) {
    const int64_t n = batch.offsets[t + 1] - batch.offsets[t];
    STD_TORCH_CHECK(n >= 0, "adm_solve: offsets must not decrease (task ", t, ")");
    STD_TORCH_CHECK(batch.classes[t] >= 1, "adm_solve: classes must be >= 1, got ", batch.classes[t], " (task ", t, ")");
    probs_needed += n * batch.classes[t];
    weights_needed += batch.classes[t];
  }
  STD_TORCH_CHECK(probs_size == 0 || probs_size == probs_needed, "adm_solve: probs_size must be 0 or ", probs_needed,
                  ", got ", probs_size);
  STD_TORCH_CHECK(weights_rows == 0 || weights_rows == weights_needed, "adm_solve: weights_rows must be 0 or ",
                  weights_needed, ", got ", weights_rows);

  const ScalarType real = dtype == Dtype::f64 ? ScalarType::Double : ScalarType::Float;
  Outputs out = {new_tensor(features, {probs_size}, real),
                 new_tensor(labels, {samples}, ScalarType::Long),
                 new_tensor(features, {weights_rows, dim}, real),
                 new_tensor(labels, {tasks}, ScalarType::Long),
                 new_tensor(features, {tasks, history ? iterations + 1 : 0, 3}, real),
                 new_tensor(labels, {tasks, 3}, ScalarType::Long)};
  auto& [probs, predictions, weights, ran, loss_terms, status] = out;
  adm_solve(batch,
            {lam, alpha, beta, temperature, marginal_weight, iterations, tol, normalize, solver_of(solver)},
            {probs_size ? probs.mutable_data_ptr() : nullptr, predictions.mutable_data_ptr<int64_t>(),
             weights_rows ? weights.mutable_data_ptr() : nullptr, ran.mutable_data_ptr<int64_t>(),
             history ? loss_terms.mutable_data_ptr() : nullptr, status.mutable_data_ptr<int64_t>()},
            torch_team());
  return out;
}

}  // namespace
}  // namespace tim_ext

STABLE_TORCH_LIBRARY_IMPL(tim_ext, CPU, m) { m.impl("adm_solve", TORCH_BOX(&tim_ext::adm_solve_cpu)); }
