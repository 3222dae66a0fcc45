// adm_solve and gd_solve up to the solve itself: arguments in the order of their schemas (ops.cpp) to named fields, checks,
// the tensors that results go into. A device gives  solve(batch, params, outputs, features).
#pragma once

#include "common/equations.h"
#include "common/sizes.h"
#include "common/tensors.h"

namespace tim_ext {

// probs, predictions, weights, iterations, history, proportions, marginal_weights, status
using SolveResult = std::tuple<Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor>;

// What the caller wants, by size.
struct Wanted {
  int64_t probs_size = 0, weights_rows = 0, proportions_size = 0;
  bool history = false;
};

inline Form form_of(const std::string& name) {
  STD_TORCH_CHECK(name == "auto" || name == "dual" || name == "primal",
                  "adm_solve: form must be 'auto', 'dual' or 'primal', got '", name, "'");
  return name == "auto" ? Form::automatic : name == "dual" ? Form::dual : Form::primal;
}

// What may be given besides the samples.
struct Given {
  const std::optional<Tensor>& class_prior;       // [sum_t K_t]
  const std::optional<Tensor>& weights;           // [sum_t K_t, d]
  const std::optional<Tensor>& sample_weight;     // [R]
  const std::optional<Tensor>& sample_log_prior;  // [sum_t N_t K_t]
};

inline Batch check_batch(const char* op,
                         const Tensor& features,             // [M, d]
                         const std::optional<Tensor>& rows,  // [R]
                         const Tensor& labels,               // [R]
                         const Tensor& offsets,              // [T + 1]
                         const Tensor& classes,              // [T]
                         const Given& given, const Wanted& wanted) {
  const Dtype dtype = dtype_of(op, features);
  check_tensor(op, "features", features, features.scalar_type(), {-1, -1}, &features);
  check_tensor(op, "labels", labels, ScalarType::Long, {-1}, &features);
  const int64_t samples = labels.size(0), dim = features.size(1);
  if (rows) check_tensor(op, "rows", *rows, ScalarType::Long, {samples}, &features);
  check_tensor(op, "classes", classes, ScalarType::Long, {-1});
  const int64_t tasks = classes.size(0);
  check_tensor(op, "offsets", offsets, ScalarType::Long, {tasks + 1});
  STD_TORCH_CHECK(dim > 0, op, ": features must have at least one column");

  Batch batch;
  batch.dtype = dtype;
  batch.features = features.const_data_ptr();
  batch.pool_rows = features.size(0);
  batch.dim = dim;
  batch.rows = rows ? rows->const_data_ptr<int64_t>() : nullptr;
  batch.labels = labels.const_data_ptr<int64_t>();
  batch.offsets = offsets.const_data_ptr<int64_t>();
  batch.classes = classes.const_data_ptr<int64_t>();
  batch.tasks = tasks;
  BatchSizes sizes;
  const std::string wrong = check_layout(batch.offsets, batch.classes, tasks, samples, &sizes);
  STD_TORCH_CHECK(wrong.empty(), op, ": ", wrong);
  auto check_size = [&](const char* name, int64_t size, int64_t whole) {
    STD_TORCH_CHECK(size == 0 || size == whole, op, ": ", name, " must be 0 or ", whole, ", got ", size);
  };
  check_size("probs_size", wanted.probs_size, sizes.probs);
  check_size("weights_rows", wanted.weights_rows, sizes.classes);
  check_size("proportions_size", wanted.proportions_size, sizes.classes);
  if (given.class_prior) {
    check_tensor(op, "class_prior", *given.class_prior, ScalarType::Double, {sizes.classes});
    batch.class_prior = given.class_prior->const_data_ptr<double>();
    check_prior(op, *given.class_prior);
  }
  auto real = [&](const char* name, const std::optional<Tensor>& tensor,
                  std::initializer_list<int64_t> shape) {
    if (!tensor) return static_cast<const void*>(nullptr);
    check_tensor(op, name, *tensor, real_type(dtype), shape, &features);
    return tensor->const_data_ptr();
  };
  batch.weights = real("weights", given.weights, {sizes.classes, dim});
  batch.sample_weight = real("sample_weight", given.sample_weight, {samples});
  batch.sample_log_prior = real("sample_log_prior", given.sample_log_prior, {sizes.probs});
  return batch;
}

inline SolveResult new_result(const Batch& batch, const Tensor& features, const Tensor& labels,
                              int64_t iterations, const Wanted& wanted) {
  const ScalarType real = real_type(batch.dtype);
  return {
      new_tensor(features, {wanted.probs_size}, real),
      new_tensor(labels, {labels.size(0)}, ScalarType::Long),
      new_tensor(features, {wanted.weights_rows, batch.dim}, real),
      new_tensor(labels, {batch.tasks}, ScalarType::Long),
      new_tensor(features, {batch.tasks, wanted.history ? iterations + 1 : 0, history_terms(batch)}, real),
      new_tensor(features, {wanted.proportions_size}, real),
      new_tensor(features, {batch.tasks}, real),
      new_tensor(labels, {batch.tasks, 3}, ScalarType::Long)};
}

inline Outputs outputs_of(const SolveResult& result) {
  const auto& [probs, predictions, weights, iterations, history, proportions, marginal_weights, status] =
      result;
  auto or_null = [](const Tensor& t) { return t.numel() ? t.mutable_data_ptr() : nullptr; };
  Outputs out;
  out.probs = or_null(probs);
  out.predictions = predictions.mutable_data_ptr<int64_t>();
  out.weights = or_null(weights);
  out.iterations = iterations.mutable_data_ptr<int64_t>();
  out.history = or_null(history);
  out.proportions = or_null(proportions);
  out.marginal_weights = or_null(marginal_weights);
  out.status = status.mutable_data_ptr<int64_t>();
  return out;
}

template <class Params>
using Solve = void (*)(const Batch&, const Params&, const Outputs&, const Tensor& features);

template <class Params>
SolveResult solve_operator(const char* op, Solve<Params> solve, const Params& params, const Tensor& features,
                           const std::optional<Tensor>& rows, const Tensor& labels, const Tensor& offsets,
                           const Tensor& classes, const Given& given, const Wanted& wanted) {
  STD_TORCH_CHECK(params.iterations >= 0 && params.iterations <= kMostIterations, op,
                  ": iterations must be >= 0 and at most 2^53, got ", params.iterations);
  STD_TORCH_CHECK(!given.sample_log_prior || params.sample_prior_weight > 0, op,
                  ": sample_prior_weight must be > 0 with sample_log_prior, got ",
                  params.sample_prior_weight);
  const Batch batch = check_batch(op, features, rows, labels, offsets, classes, given, wanted);
  const SolveResult result = new_result(batch, features, labels, params.iterations, wanted);
  solve(batch, params, outputs_of(result), features);
  return result;
}

template <Solve<AdmParams> solve>
SolveResult adm_solve_operator(
    const Tensor& features, const std::optional<Tensor>& rows, const Tensor& labels, const Tensor& offsets,
    const Tensor& classes, double lam, double alpha, double beta, double temperature,
    const std::optional<double>& marginal_weight, const std::optional<double>& smoothing,
    const std::optional<double>& relaxation, int64_t iterations, double tol, bool normalize,
    const std::string& form, int64_t probs_size, int64_t weights_rows, int64_t proportions_size, bool history,
    const std::optional<Tensor>& class_prior, bool roots, const std::optional<Tensor>& weights,
    const std::optional<Tensor>& sample_weight, const std::optional<Tensor>& sample_log_prior,
    double sample_prior_weight) {
  AdmParams p;
  p.lam = lam;
  p.alpha = alpha;
  p.beta = beta;
  p.temperature = temperature;
  p.decides_marginal = !marginal_weight;
  p.marginal_weight = marginal_weight.value_or(kUndecidedMarginal);
  p.smooths_by_shots = !smoothing;
  p.smoothing = smoothing.value_or(kNotGiven);
  p.sample_prior_weight = sample_log_prior ? sample_prior_weight : 0;
  STD_TORCH_CHECK(!smoothing || (*smoothing >= 0 && *smoothing < 1),
                  "adm_solve: smoothing must be >= 0 and < 1, got ", *smoothing);
  p.chooses_steps = !relaxation;
  p.relaxation = relaxation.value_or(kNotGiven);
  p.iterations = iterations;
  p.tol = tol;
  p.normalize = normalize;
  p.roots = roots;
  p.form = form_of(form);
  STD_TORCH_CHECK(!weights || p.form != Form::dual,
                  "adm_solve: form must be 'auto' or 'primal' with weights, got 'dual'");
  Wanted wanted;
  wanted.probs_size = probs_size;
  wanted.weights_rows = weights_rows;
  wanted.proportions_size = proportions_size;
  wanted.history = history;
  return solve_operator("adm_solve", solve, p, features, rows, labels, offsets, classes,
                        {class_prior, weights, sample_weight, sample_log_prior}, wanted);
}

template <Solve<GdParams> solve>
SolveResult gd_solve_operator(const Tensor& features, const std::optional<Tensor>& rows, const Tensor& labels,
                              const Tensor& offsets, const Tensor& classes, double lam, double alpha,
                              double temperature, double marginal_weight, double entropy_order,
                              int64_t iterations, double lr, double adam_beta1, double adam_beta2, double eps,
                              double tol, bool normalize, int64_t probs_size, int64_t weights_rows,
                              int64_t proportions_size, bool history,
                              const std::optional<Tensor>& class_prior, const std::optional<Tensor>& weights,
                              const std::optional<Tensor>& sample_weight,
                              const std::optional<Tensor>& sample_log_prior, double sample_prior_weight) {
  GdParams p;
  p.lam = lam;
  p.alpha = alpha;
  p.temperature = temperature;
  p.marginal_weight = marginal_weight;
  p.entropy_order = entropy_order;
  p.sample_prior_weight = sample_log_prior ? sample_prior_weight : 0;
  p.iterations = iterations;
  p.lr = lr;
  p.adam_beta1 = adam_beta1;
  p.adam_beta2 = adam_beta2;
  p.eps = eps;
  p.tol = tol;
  p.normalize = normalize;
  Wanted wanted;
  wanted.probs_size = probs_size;
  wanted.weights_rows = weights_rows;
  wanted.proportions_size = proportions_size;
  wanted.history = history;
  return solve_operator("gd_solve", solve, p, features, rows, labels, offsets, classes,
                        {class_prior, weights, sample_weight, sample_log_prior}, wanted);
}

}  // namespace tim_ext
