// The step operators up to the step itself: arguments in the order of their schemas (ops.cpp) to named fields, checks, the
// tensors that results go into. A device gives  Device::run(step, like)  for a step of float or double.
#pragma once

#include "common/steps.h"
#include "common/tensors.h"

namespace tim_ext {

// features [T, N, d] and weights [T, K, d], of one floating type.
inline StepShape check_features(const char* op, const Tensor& features, const Tensor& weights) {
  check_floating(op, "features", features);
  check_tensor(op, "features", features, features.scalar_type(), {-1, -1, -1}, &features);
  check_tensor(op, "weights", weights, features.scalar_type(), {features.size(0), -1, features.size(2)},
               &features);
  STD_TORCH_CHECK(weights.size(1) > 0, op, ": weights must hold at least one class, got ", shape_of(weights));
  STD_TORCH_CHECK(features.size(2) > 0, op, ": features must have at least one column, got ",
                  shape_of(features));
  StepShape s;
  s.tasks = features.size(0);
  s.samples = features.size(1);
  s.classes = weights.size(1);
  s.dim = features.size(2);
  return s;
}
inline void check_labels(const char* op, const Tensor& labels, const Tensor& like, const StepShape& s) {
  check_tensor(op, "labels", labels, ScalarType::Long, {s.tasks, s.samples}, &like);
}
// [T, N, K] of the type of `like`.
inline Tensor new_probs(const Tensor& like, const StepShape& s) {
  return new_tensor(like, {s.tasks, s.samples, s.classes}, like.scalar_type());
}

template <class Device>
std::tuple<Tensor, Tensor> distance_softmax_operator(const Tensor& features,  // [T, N, d]
                                                     const Tensor& weights,   // [T, K, d]
                                                     double temperature) {
  AdmParams p;
  p.temperature = temperature;
  const StepShape s = check_features("distance_softmax", features, weights);
  Tensor probs = new_probs(features, s), log_probs = new_probs(features, s);
  with_real(dtype_of("distance_softmax", features), [&](auto zero) {
    using T = decltype(zero);
    DistanceSoftmax<T> step;
    step.shape = s;
    step.c = adm_coefficients<T>(p);
    step.features = features.const_data_ptr<T>();
    step.weights = weights.const_data_ptr<T>();
    step.probs = probs.mutable_data_ptr<T>();
    step.log_probs = log_probs.mutable_data_ptr<T>();
    Device::run(step, features);
  });
  return {probs, log_probs};
}

template <class Device>
Tensor q_update_operator(const Tensor& log_probs,  // [T, N, K]
                         const Tensor& labels,     // [T, N]
                         double alpha, double beta, double marginal_weight) {
  const char* op = "q_update";
  AdmParams p;
  p.alpha = alpha;
  p.beta = beta;
  p.marginal_weight = marginal_weight;
  check_floating(op, "log_probs", log_probs);
  check_tensor(op, "log_probs", log_probs, log_probs.scalar_type(), {-1, -1, -1}, &log_probs);
  StepShape s;
  s.tasks = log_probs.size(0);
  s.samples = log_probs.size(1);
  s.classes = log_probs.size(2);
  check_labels(op, labels, log_probs, s);
  Tensor assignments = new_probs(log_probs, s);
  with_real(dtype_of(op, log_probs), [&](auto zero) {
    using T = decltype(zero);
    QUpdate<T> step;
    step.shape = s;
    step.c = adm_coefficients<T>(p);
    step.log_probs = log_probs.const_data_ptr<T>();
    step.labels = labels.const_data_ptr<int64_t>();
    step.assignments = assignments.mutable_data_ptr<T>();
    Device::run(step, log_probs);
  });
  return assignments;
}

template <class Device>
Tensor w_update_operator(const Tensor& features,     // [T, N, d]
                         const Tensor& weights,      // [T, K, d]
                         const Tensor& probs,        // [T, N, K]
                         const Tensor& assignments,  // [T, N, K]
                         const Tensor& labels,       // [T, N]
                         double lam, double alpha, double beta) {
  const char* op = "w_update";
  AdmParams p;
  p.lam = lam;
  p.alpha = alpha;
  p.beta = beta;
  const StepShape s = check_features(op, features, weights);
  const ScalarType real = features.scalar_type();
  check_tensor(op, "probs", probs, real, {s.tasks, s.samples, s.classes}, &features);
  check_tensor(op, "assignments", assignments, real, {s.tasks, s.samples, s.classes}, &features);
  check_labels(op, labels, features, s);
  Tensor out = new_tensor(weights, {s.tasks, s.classes, s.dim}, real);
  with_real(dtype_of(op, features), [&](auto zero) {
    using T = decltype(zero);
    WUpdate<T> step;
    step.shape = s;
    step.c = adm_coefficients<T>(p);
    step.features = features.const_data_ptr<T>();
    step.weights = weights.const_data_ptr<T>();
    step.probs = probs.const_data_ptr<T>();
    step.assignments = assignments.const_data_ptr<T>();
    step.labels = labels.const_data_ptr<int64_t>();
    step.out = out.mutable_data_ptr<T>();
    Device::run(step, features);
  });
  return out;
}

// loss [T], terms [T, 3], gradient [T, K, d]. A device gives  Device::run(batch, params, out, features, labels), which
// fills out.status, too.
template <class Device>
std::tuple<Tensor, Tensor, Tensor> gd_gradient_operator(const Tensor& features,  // [T, N, d]
                                                        const Tensor& weights,   // [T, K, d]
                                                        const Tensor& labels,    // [T, N]
                                                        const std::optional<Tensor>& class_prior,  // [T, K]
                                                        double lam, double alpha, double temperature,
                                                        double marginal_weight, double entropy_order) {
  const char* op = "gd_gradient";
  GdParams p;
  p.lam = lam;
  p.alpha = alpha;
  p.temperature = temperature;
  p.marginal_weight = marginal_weight;
  p.entropy_order = entropy_order;
  const StepShape s = check_features(op, features, weights);
  check_labels(op, labels, features, s);
  if (class_prior) {
    check_tensor(op, "class_prior", *class_prior, ScalarType::Double, {s.tasks, s.classes});
    check_prior(op, *class_prior);
  }
  STD_TORCH_CHECK(s.tasks == 0 || s.samples > 0, op, ": every task needs a support sample, got features ",
                  shape_of(features));
  std::vector<int64_t> offsets;
  for (int64_t t = 0; t <= s.tasks; ++t) offsets.push_back(t * s.samples);
  const std::vector<int64_t> classes(size_t(s.tasks), s.classes);
  Batch batch;
  batch.dtype = dtype_of(op, features);
  batch.features = features.const_data_ptr();
  batch.pool_rows = s.tasks * s.samples;
  batch.dim = s.dim;
  batch.labels = labels.const_data_ptr<int64_t>();
  batch.offsets = offsets.data();
  batch.classes = classes.data();
  batch.class_prior = class_prior ? class_prior->const_data_ptr<double>() : nullptr;
  batch.tasks = s.tasks;
  const ScalarType real = features.scalar_type();
  Tensor loss = new_tensor(features, {s.tasks}, real), terms = new_tensor(features, {s.tasks, 3}, real);
  Tensor gradient = new_tensor(weights, {s.tasks, s.classes, s.dim}, real);
  Gradient out;
  out.weights = weights.const_data_ptr();
  out.gradient = gradient.mutable_data_ptr();
  out.terms = terms.mutable_data_ptr();
  out.loss = loss.mutable_data_ptr();
  Device::run(batch, p, out, features, labels);
  return {loss, terms, gradient};
}

}  // namespace tim_ext
