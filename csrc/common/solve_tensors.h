// Tensors of a solver operator to plain structs: checks, and the tensors that results go into. For every device.
#pragma once

#include "common/problem.h"
#include "common/torch_abi.h"

namespace tim_ext {

// probs, predictions, weights, iterations, history, status
using SolveResult = std::tuple<Tensor, Tensor, Tensor, Tensor, Tensor, Tensor>;

inline Dtype dtype_of(const char* op, const Tensor& features) {
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
      STD_TORCH_CHECK(false, op, ": features must be float32, float64, float16 or bfloat16, got ",
                      torch::headeronly::toString(features.scalar_type()));
  }
}

inline Solver solver_of(const std::string& name) {
  STD_TORCH_CHECK(name == "auto" || name == "dual" || name == "primal",
                  "adm_solve: solver must be 'auto', 'dual' or 'primal', got '", name, "'");
  return name == "auto" ? Solver::automatic : name == "dual" ? Solver::dual : Solver::primal;
}

inline void check_prior(const char* op, const Tensor& class_prior) {
  const double* value = class_prior.const_data_ptr<double>();
  for (int64_t k = 0; k < class_prior.numel(); ++k)
    STD_TORCH_CHECK(value[k] > 0, op, ": class_prior must be > 0, got ", value[k]);
}

inline Batch check_batch(const char* op,
                         const Tensor& features,                    // [M, d]
                         const std::optional<Tensor>& rows,         // [R]
                         const Tensor& labels,                      // [R]
                         const Tensor& offsets,                     // [T + 1]
                         const Tensor& classes,                     // [T]
                         const std::optional<Tensor>& class_prior,  // [sum_t K_t]
                         int64_t probs_size, int64_t weights_rows) {
  const Dtype dtype = dtype_of(op, features);
  check_tensor(op, "features", features, features.scalar_type(), {-1, -1}, &features);
  check_tensor(op, "labels", labels, ScalarType::Long, {-1}, &features);
  const int64_t samples = labels.size(0), dim = features.size(1);
  if (rows) check_tensor(op, "rows", *rows, ScalarType::Long, {samples}, &features);
  check_tensor(op, "classes", classes, ScalarType::Long, {-1});
  const int64_t tasks = classes.size(0);
  check_tensor(op, "offsets", offsets, ScalarType::Long, {tasks + 1});
  STD_TORCH_CHECK(dim > 0, op, ": features must have at least one column");

  Batch batch = {dtype,
                 features.const_data_ptr(),
                 features.size(0),
                 dim,
                 rows ? rows->const_data_ptr<int64_t>() : nullptr,
                 labels.const_data_ptr<int64_t>(),
                 offsets.const_data_ptr<int64_t>(),
                 classes.const_data_ptr<int64_t>(),
                 nullptr,
                 tasks};
  int64_t probs_needed = 0, all_classes = 0;
  STD_TORCH_CHECK(batch.offsets[0] == 0 && batch.offsets[tasks] == samples, op,
                  ": offsets must run from 0 to the number of labels (", samples, ")");
  for (int64_t t = 0; t < tasks; ++t) {
    const int64_t n = batch.offsets[t + 1] - batch.offsets[t];
    STD_TORCH_CHECK(n >= 0, op, ": offsets must not decrease (task ", t, ")");
    STD_TORCH_CHECK(batch.classes[t] >= 1, op, ": classes must be >= 1, got ", batch.classes[t], " (task ", t,
                    ")");
    probs_needed += n * batch.classes[t];
    all_classes += batch.classes[t];
  }
  STD_TORCH_CHECK(probs_size == 0 || probs_size == probs_needed, op, ": probs_size must be 0 or ",
                  probs_needed, ", got ", probs_size);
  STD_TORCH_CHECK(weights_rows == 0 || weights_rows == all_classes, op, ": weights_rows must be 0 or ",
                  all_classes, ", got ", weights_rows);
  if (class_prior) {
    check_tensor(op, "class_prior", *class_prior, ScalarType::Double, {all_classes});
    batch.class_prior = class_prior->const_data_ptr<double>();
    check_prior(op, *class_prior);
  }
  return batch;
}

inline SolveResult new_result(const Batch& batch, const Tensor& features, const Tensor& labels,
                              int64_t probs_size, int64_t weights_rows, int64_t iterations, bool history) {
  const ScalarType real = batch.dtype == Dtype::f64 ? ScalarType::Double : ScalarType::Float;
  return {new_tensor(features, {probs_size}, real),
          new_tensor(labels, {labels.size(0)}, ScalarType::Long),
          new_tensor(features, {weights_rows, batch.dim}, real),
          new_tensor(labels, {batch.tasks}, ScalarType::Long),
          new_tensor(features, {batch.tasks, history ? iterations + 1 : 0, 3}, real),
          new_tensor(labels, {batch.tasks, 3}, ScalarType::Long)};
}

inline Outputs outputs_of(const SolveResult& result) {
  const auto& [probs, predictions, weights, iterations, history, status] = result;
  auto or_null = [](const Tensor& t) { return t.numel() ? t.mutable_data_ptr() : nullptr; };
  return {or_null(probs),   predictions.mutable_data_ptr<int64_t>(),
          or_null(weights), iterations.mutable_data_ptr<int64_t>(),
          or_null(history), status.mutable_data_ptr<int64_t>()};
}

// T tasks of equal shape, as the step operators take them.
struct TasksShape {
  int64_t tasks, samples, classes, dim;
};

// features [T, N, d] and weights [T, K, d], of one floating type.
inline TasksShape check_step_features(const char* op, const Tensor& features, const Tensor& weights) {
  check_floating(op, "features", features);
  check_tensor(op, "features", features, features.scalar_type(), {-1, -1, -1}, &features);
  check_tensor(op, "weights", weights, features.scalar_type(), {features.size(0), -1, features.size(2)},
               &features);
  STD_TORCH_CHECK(weights.size(1) > 0, op, ": weights must hold at least one class, got ", shape_of(weights));
  return {features.size(0), features.size(1), weights.size(1), features.size(2)};
}
// probs and the like, [T, N, K], of the same type.
inline void check_step_probs(const char* op, const char* name, const Tensor& probs, const Tensor& features,
                             const TasksShape& s) {
  check_tensor(op, name, probs, features.scalar_type(), {s.tasks, s.samples, s.classes}, &features);
}
inline void check_step_labels(const char* op, const Tensor& labels, const Tensor& like, const TasksShape& s) {
  check_tensor(op, "labels", labels, ScalarType::Long, {s.tasks, s.samples}, &like);
}
// log_probs [T, N, K] alone.
inline TasksShape check_log_probs(const char* op, const Tensor& log_probs) {
  check_floating(op, "log_probs", log_probs);
  check_tensor(op, "log_probs", log_probs, log_probs.scalar_type(), {-1, -1, -1}, &log_probs);
  return {log_probs.size(0), log_probs.size(1), log_probs.size(2), 0};
}

// The tasks of a step operator as a batch, with the arrays that it points to.
struct EqualTasks {
  Batch batch;
  std::vector<int64_t> offsets, classes;
};
inline EqualTasks equal_tasks(const char* op, const Tensor& features, const Tensor& labels,
                              const TasksShape& s,
                              const std::optional<Tensor>& class_prior) {  // [T, K]
  if (class_prior) {
    check_tensor(op, "class_prior", *class_prior, ScalarType::Double, {s.tasks, s.classes});
    check_prior(op, *class_prior);
  }
  EqualTasks e;
  for (int64_t t = 0; t <= s.tasks; ++t) e.offsets.push_back(t * s.samples);
  e.classes.assign(size_t(s.tasks), s.classes);
  e.batch = {dtype_of(op, features),
             features.const_data_ptr(),
             s.tasks * s.samples,
             s.dim,
             nullptr,
             labels.const_data_ptr<int64_t>(),
             e.offsets.data(),
             e.classes.data(),
             class_prior ? class_prior->const_data_ptr<double>() : nullptr,
             s.tasks};
  return e;
}

// f(float) or f(double), by the tensor's type.
template <class F>
void with_type(const Tensor& t, F f) {
  if (t.scalar_type() == ScalarType::Double)
    f(double{});
  else
    f(float{});
}

}  // namespace tim_ext
