// The step operators up to the step itself: arguments in the order of their schemas (ops.cpp) to named fields, checks, the
// tensors that results go into. A device gives  Device::run(step, like)  for a step of float or double.
#pragma once

#include <utility>

#include "common/steps.h"
#include "common/tensors.h"

namespace tim_ext {

// The type that features [T, N, d] compute in, which weights [T, K, d] have. A device with Device::kTakesLayouts reads features,
// weights and labels where they lie, whatever their strides, and half types; another wants them contiguous.
template <class Device>
ScalarType check_features(const char* op, const Tensor& features, const Tensor& weights, StepShape* s,
                          StepLayout* layout) {
  const Dense dense = Device::kTakesLayouts ? Dense::rows : Dense::whole;
  if (!Device::kTakesLayouts) check_floating(op, "features", features);
  const ScalarType real = real_type(dtype_of(op, features));
  check_tensor(op, "features", features, features.scalar_type(), {-1, -1, -1}, &features, dense);
  STD_TORCH_CHECK(weights.scalar_type() == real, op, ": weights must be ", torch::headeronly::toString(real),
                  ", which features of ", torch::headeronly::toString(features.scalar_type()),
                  " compute in, got ", torch::headeronly::toString(weights.scalar_type()));
  check_tensor(op, "weights", weights, real, {features.size(0), -1, features.size(2)}, &features, dense);
  STD_TORCH_CHECK(weights.size(1) > 0, op, ": weights must hold at least one class, got ", shape_of(weights));
  STD_TORCH_CHECK(features.size(2) > 0, op, ": features must have at least one column, got ",
                  shape_of(features));
  s->tasks = features.size(0);
  s->samples = features.size(1);
  s->classes = weights.size(1);
  s->dim = features.size(2);
  layout->dtype = dtype_of(op, features);
  layout->feature_task = features.stride(0);
  layout->feature_row = features.stride(1);
  layout->weight_task = weights.stride(0);
  layout->weight_row = weights.stride(1);
  return real;
}
template <class Device>
void check_labels(const char* op, const Tensor& labels, const Tensor& like, const StepShape& s,
                  StepLayout* layout) {
  check_tensor(op, "labels", labels, ScalarType::Long, {s.tasks, s.samples}, &like,
               Device::kTakesLayouts ? Dense::no : Dense::whole);
  layout->label_task = labels.stride(0);
  layout->label = labels.stride(1);
}
inline std::vector<int64_t> probs_shape(const StepShape& s) { return {s.tasks, s.samples, s.classes}; }

// Refuses a result of the caller that shares memory with another tensor.
inline void check_apart(const char* op, const char* name, const Tensor& out, const char* other,
                        const Tensor& tensor) {
  if (out.numel() == 0 || tensor.numel() == 0) return;
  int64_t last = 0;  // element of `tensor`, from its first; strides are not negative
  for (int64_t i = 0; i < tensor.dim(); ++i) last += (tensor.size(i) - 1) * tensor.stride(i);
  const auto begin = [](const Tensor& t) { return static_cast<const char*>(t.const_data_ptr()); };
  const bool before = begin(out) + out.numel() * int64_t(out.element_size()) <= begin(tensor);
  const bool behind = begin(tensor) + (last + 1) * int64_t(tensor.element_size()) <= begin(out);
  STD_TORCH_CHECK(before || behind, op, ": ", name, " must not share memory with ", other);
}

// Each step comes twice: into new tensors, and into those of the caller, so that a loop allocates nothing.
template <class Device>
struct DistanceSoftmaxOperator {
  static constexpr const char* op = "distance_softmax";
  StepShape shape;
  StepLayout layout;
  ScalarType real;

  DistanceSoftmaxOperator(const Tensor& features,  // [T, N, d]
                          const Tensor& weights)   // [T, K, d]
      : real(check_features<Device>(op, features, weights, &shape, &layout)) {}

  void run(const Tensor& features, const Tensor& weights, double temperature, const Tensor& probs,
           const Tensor& log_probs) const {
    AdmParams p;
    p.temperature = temperature;
    with_real(layout.dtype, [&](auto zero) {
      using T = decltype(zero);
      Laid<DistanceSoftmax<T>> step;
      step.shape = shape;
      step.c = adm_coefficients<T>(p);
      step.layout = layout;
      step.features = features.const_data_ptr();
      step.weights = weights.const_data_ptr<T>();
      step.probs = probs.mutable_data_ptr<T>();
      step.log_probs = log_probs.mutable_data_ptr<T>();
      Device::run(step, features);
    });
  }
  static std::tuple<Tensor, Tensor> make(const Tensor& features, const Tensor& weights, double temperature) {
    const DistanceSoftmaxOperator self(features, weights);
    Tensor probs = new_tensor(features, probs_shape(self.shape), self.real);
    Tensor log_probs = new_tensor(features, probs_shape(self.shape), self.real);
    self.run(features, weights, temperature, probs, log_probs);
    return {probs, log_probs};
  }
  static void fill(const Tensor& features, const Tensor& weights, double temperature, const Tensor& probs,
                   const Tensor& log_probs) {
    const DistanceSoftmaxOperator self(features, weights);
    check_tensor(op, "probs", probs, self.real, probs_shape(self.shape), &features);
    check_tensor(op, "log_probs", log_probs, self.real, probs_shape(self.shape), &features);
    check_apart(op, "probs", probs, "log_probs", log_probs);
    for (const auto& [name, out] : {std::pair("probs", &probs), std::pair("log_probs", &log_probs)}) {
      check_apart(op, name, *out, "features", features);
      check_apart(op, name, *out, "weights", weights);
    }
    self.run(features, weights, temperature, probs, log_probs);
  }
};

template <class Device>
struct QUpdateOperator {
  static constexpr const char* op = "q_update";
  StepShape shape;
  StepLayout layout;

  QUpdateOperator(const Tensor& log_probs,  // [T, N, K]
                  const Tensor& labels) {   // [T, N]
    check_floating(op, "log_probs", log_probs);
    check_tensor(op, "log_probs", log_probs, log_probs.scalar_type(), {-1, -1, -1}, &log_probs);
    shape.tasks = log_probs.size(0);
    shape.samples = log_probs.size(1);
    shape.classes = log_probs.size(2);
    check_labels<Device>(op, labels, log_probs, shape, &layout);
  }

  void run(const Tensor& log_probs, const Tensor& labels, double alpha, double beta, double marginal_weight,
           const Tensor& assignments) const {
    AdmParams p;
    p.alpha = alpha;
    p.beta = beta;
    p.marginal_weight = marginal_weight;
    with_real(dtype_of(op, log_probs), [&](auto zero) {
      using T = decltype(zero);
      Laid<QUpdate<T>> step;
      step.shape = shape;
      step.c = adm_coefficients<T>(p);
      step.layout = layout;
      step.log_probs = log_probs.const_data_ptr<T>();
      step.labels = labels.const_data_ptr<int64_t>();
      step.assignments = assignments.mutable_data_ptr<T>();
      Device::run(step, log_probs);
    });
  }
  static Tensor make(const Tensor& log_probs, const Tensor& labels, double alpha, double beta,
                     double marginal_weight) {
    const QUpdateOperator self(log_probs, labels);
    Tensor assignments = new_tensor(log_probs, probs_shape(self.shape), log_probs.scalar_type());
    self.run(log_probs, labels, alpha, beta, marginal_weight, assignments);
    return assignments;
  }
  static void fill(const Tensor& log_probs, const Tensor& labels, double alpha, double beta,
                   double marginal_weight, const Tensor& out) {
    const QUpdateOperator self(log_probs, labels);
    check_tensor(op, "out", out, log_probs.scalar_type(), probs_shape(self.shape), &log_probs);
    check_apart(op, "out", out, "log_probs", log_probs);
    check_apart(op, "out", out, "labels", labels);
    self.run(log_probs, labels, alpha, beta, marginal_weight, out);
  }
};

template <class Device>
struct WUpdateOperator {
  static constexpr const char* op = "w_update";
  StepShape shape;
  StepLayout layout;
  ScalarType real;

  WUpdateOperator(const Tensor& features,     // [T, N, d]
                  const Tensor& weights,      // [T, K, d]
                  const Tensor& probs,        // [T, N, K]
                  const Tensor& assignments,  // [T, N, K]
                  const Tensor& labels)       // [T, N]
      : real(check_features<Device>(op, features, weights, &shape, &layout)) {
    check_tensor(op, "probs", probs, real, probs_shape(shape), &features);
    check_tensor(op, "assignments", assignments, real, probs_shape(shape), &features);
    check_labels<Device>(op, labels, features, shape, &layout);
  }

  void run(const Tensor& features, const Tensor& weights, const Tensor& probs, const Tensor& assignments,
           const Tensor& labels, double lam, double alpha, double beta, const Tensor& out) const {
    AdmParams p;
    p.lam = lam;
    p.alpha = alpha;
    p.beta = beta;
    with_real(layout.dtype, [&](auto zero) {
      using T = decltype(zero);
      Laid<WUpdate<T>> step;
      step.shape = shape;
      step.c = adm_coefficients<T>(p);
      step.layout = layout;
      step.features = features.const_data_ptr();
      step.weights = weights.const_data_ptr<T>();
      step.probs = probs.const_data_ptr<T>();
      step.assignments = assignments.const_data_ptr<T>();
      step.labels = labels.const_data_ptr<int64_t>();
      step.out = out.mutable_data_ptr<T>();
      Device::run(step, features);
    });
  }
  static Tensor make(const Tensor& features, const Tensor& weights, const Tensor& probs,
                     const Tensor& assignments, const Tensor& labels, double lam, double alpha, double beta) {
    const WUpdateOperator self(features, weights, probs, assignments, labels);
    Tensor out = new_tensor(weights, {self.shape.tasks, self.shape.classes, self.shape.dim}, self.real);
    self.run(features, weights, probs, assignments, labels, lam, alpha, beta, out);
    return out;
  }
  // `out` may be the weights themselves: the sums come first, then each element from the one that it replaces.
  static void fill(const Tensor& features, const Tensor& weights, const Tensor& probs,
                   const Tensor& assignments, const Tensor& labels, double lam, double alpha, double beta,
                   const Tensor& out) {
    const WUpdateOperator self(features, weights, probs, assignments, labels);
    check_tensor(op, "out", out, self.real, {self.shape.tasks, self.shape.classes, self.shape.dim},
                 &features);
    if (out.const_data_ptr() != weights.const_data_ptr() || !weights.is_contiguous())
      check_apart(op, "out", out, "weights", weights);
    check_apart(op, "out", out, "features", features);
    check_apart(op, "out", out, "probs", probs);
    check_apart(op, "out", out, "assignments", assignments);
    check_apart(op, "out", out, "labels", labels);
    self.run(features, weights, probs, assignments, labels, lam, alpha, beta, out);
  }
};

// loss [T], terms [T, 3], gradient [T, K, d]. A device gives  Device::run(batch, params, out, features, labels), which
// fills out.status, too.
template <class Device>
struct GdGradientOperator {
  static constexpr const char* op = "gd_gradient";
  StepShape shape;
  ScalarType real;

  GdGradientOperator(const Tensor& features,                    // [T, N, d]
                     const Tensor& weights,                     // [T, K, d]
                     const Tensor& labels,                      // [T, N]
                     const std::optional<Tensor>& class_prior)  // [T, K]
  {
    StepLayout layout;
    real = check_features<Device>(op, features, weights, &shape, &layout);
    check_labels<Device>(op, labels, features, shape, &layout);
    if (class_prior) {
      check_tensor(op, "class_prior", *class_prior, ScalarType::Double, {shape.tasks, shape.classes});
      check_prior(op, *class_prior);
    }
    STD_TORCH_CHECK(shape.tasks == 0 || shape.samples > 0, op,
                    ": every task needs a support sample, got features ", shape_of(features));
  }

  void run(const Tensor& features, const Tensor& weights, const Tensor& labels,
           const std::optional<Tensor>& class_prior, const GdParams& p, const Tensor& loss,
           const Tensor& terms, const Tensor& gradient) const {
    std::vector<int64_t> offsets;
    for (int64_t t = 0; t <= shape.tasks; ++t) offsets.push_back(t * shape.samples);
    const std::vector<int64_t> classes(size_t(shape.tasks), shape.classes);
    Batch batch;
    batch.dtype = dtype_of(op, features);
    batch.features = features.const_data_ptr();
    batch.pool_rows = shape.tasks * shape.samples;
    batch.dim = shape.dim;
    batch.labels = labels.const_data_ptr<int64_t>();
    batch.offsets = offsets.data();
    batch.classes = classes.data();
    batch.class_prior = class_prior ? class_prior->const_data_ptr<double>() : nullptr;
    batch.tasks = shape.tasks;
    Gradient out;
    out.weights = weights.const_data_ptr();
    out.gradient = gradient.mutable_data_ptr();
    out.terms = terms.mutable_data_ptr();
    out.loss = loss.mutable_data_ptr();
    Device::run(batch, p, out, features, labels);
  }
  std::vector<int64_t> loss_shape() const { return {shape.tasks}; }
  std::vector<int64_t> terms_shape() const { return {shape.tasks, 3}; }
  std::vector<int64_t> gradient_shape() const { return {shape.tasks, shape.classes, shape.dim}; }
  static GdParams params(double lam, double alpha, double temperature, double marginal_weight,
                         double entropy_order) {
    GdParams p;
    p.lam = lam;
    p.alpha = alpha;
    p.temperature = temperature;
    p.marginal_weight = marginal_weight;
    p.entropy_order = entropy_order;
    return p;
  }

  static std::tuple<Tensor, Tensor, Tensor> make(const Tensor& features, const Tensor& weights,
                                                 const Tensor& labels,
                                                 const std::optional<Tensor>& class_prior, double lam,
                                                 double alpha, double temperature, double marginal_weight,
                                                 double entropy_order) {
    const GdGradientOperator self(features, weights, labels, class_prior);
    Tensor loss = new_tensor(features, self.loss_shape(), self.real);
    Tensor terms = new_tensor(features, self.terms_shape(), self.real);
    Tensor gradient = new_tensor(weights, self.gradient_shape(), self.real);
    self.run(features, weights, labels, class_prior,
             params(lam, alpha, temperature, marginal_weight, entropy_order), loss, terms, gradient);
    return {loss, terms, gradient};
  }
  static void fill(const Tensor& features, const Tensor& weights, const Tensor& labels,
                   const std::optional<Tensor>& class_prior, double lam, double alpha, double temperature,
                   double marginal_weight, double entropy_order, const Tensor& loss, const Tensor& terms,
                   const Tensor& gradient) {
    const GdGradientOperator self(features, weights, labels, class_prior);
    check_tensor(op, "loss", loss, self.real, self.loss_shape(), &features);
    check_tensor(op, "terms", terms, self.real, self.terms_shape(), &features);
    check_tensor(op, "gradient", gradient, self.real, self.gradient_shape(), &features);
    check_apart(op, "loss", loss, "terms", terms);
    check_apart(op, "loss", loss, "gradient", gradient);
    check_apart(op, "terms", terms, "gradient", gradient);
    for (const auto& [name, out] :
         {std::pair("loss", &loss), std::pair("terms", &terms), std::pair("gradient", &gradient)}) {
      check_apart(op, name, *out, "features", features);
      check_apart(op, name, *out, "weights", weights);
      check_apart(op, name, *out, "labels", labels);
    }
    self.run(features, weights, labels, class_prior,
             params(lam, alpha, temperature, marginal_weight, entropy_order), loss, terms, gradient);
  }
};

}  // namespace tim_ext
