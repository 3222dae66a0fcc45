// The step operators on the CPU: shapes and threads here, the arithmetic in core/steps.h.
#include <algorithm>
#include <memory>

#include "common/torch_abi.h"
#include "cpu/core/kernels.h"
#include "cpu/team.h"

namespace tim_ext {
namespace {

struct Shape : StepShape {
  int64_t tasks;
};

// features [T, N, d] and weights [T, K, d], of one floating type.
Shape check_features(const char* op, const Tensor& features, const Tensor& weights) {
  check_floating(op, "features", features);
  check_tensor(op, "features", features, features.scalar_type(), {-1, -1, -1});
  check_tensor(op, "weights", weights, features.scalar_type(), {features.size(0), -1, features.size(2)});
  STD_TORCH_CHECK(weights.size(1) > 0, op, ": weights must hold at least one class, got ", shape_of(weights));
  return {{features.size(1), weights.size(1), features.size(2)}, features.size(0)};
}

// body(task, piece, workspace) for all tasks and pieces, on torch's threads.
template <class T, class F>
void for_pieces(const Shape& shape, int64_t pieces, F body) {
  auto one = [&](int64_t i) {
    const int64_t bytes = kernels<T>().step_workspace(shape);
    std::unique_ptr<void, decltype(&std::free)> work(std::aligned_alloc(64, size_t((bytes + 63) / 64 * 64)),
                                                     std::free);
    body(i / pieces, i % pieces, work.get());
  };
  const Team team = torch_team();
  team.parallel(shape.tasks * pieces, [](void* f, int64_t i) { (*static_cast<decltype(one)*>(f))(i); }, &one);
}

// f(float) or f(double), by the tensor's type.
template <class F>
void with_type(const Tensor& t, F f) {
  if (t.scalar_type() == ScalarType::Double)
    f(double{});
  else
    f(float{});
}

std::tuple<Tensor, Tensor> distance_softmax_cpu(const Tensor& features,  // [T, N, d]
                                                const Tensor& weights,   // [T, K, d]
                                                double temperature) {
  const Shape s = check_features("distance_softmax", features, weights);
  const std::vector<int64_t> shape = {s.tasks, s.samples, s.classes};
  Tensor probs = new_tensor(features, shape, features.scalar_type());
  Tensor log_probs = new_tensor(features, shape, features.scalar_type());
  constexpr int64_t rows = 128;
  with_type(features, [&](auto zero) {
    using T = decltype(zero);
    for_pieces<T>(s, (s.samples + rows - 1) / rows, [&](int64_t t, int64_t piece, void* work) {
      const int64_t i0 = piece * rows, out = t * s.samples * s.classes;
      kernels<T>().distance_softmax(features.const_data_ptr<T>() + t * s.samples * s.dim,
                                    weights.const_data_ptr<T>() + t * s.classes * s.dim, s, T(temperature),
                                    i0, std::min(rows, s.samples - i0), probs.mutable_data_ptr<T>() + out,
                                    log_probs.mutable_data_ptr<T>() + out, work);
    });
  });
  return {probs, log_probs};
}

Tensor q_update_cpu(const Tensor& log_probs,  // [T, N, K]
                    const Tensor& labels,     // [T, N]
                    double alpha, double beta, double marginal_weight) {
  check_floating("q_update", "log_probs", log_probs);
  check_tensor("q_update", "log_probs", log_probs, log_probs.scalar_type(), {-1, -1, -1});
  check_tensor("q_update", "labels", labels, ScalarType::Long, {log_probs.size(0), log_probs.size(1)});
  const Shape s = {{log_probs.size(1), log_probs.size(2), 0}, log_probs.size(0)};
  Tensor q = new_tensor(log_probs, {s.tasks, s.samples, s.classes}, log_probs.scalar_type());
  with_type(log_probs, [&](auto zero) {
    using T = decltype(zero);
    for_pieces<T>(s, 1, [&](int64_t t, int64_t, void* work) {
      const int64_t at = t * s.samples * s.classes;
      kernels<T>().q_update(log_probs.const_data_ptr<T>() + at,
                            labels.const_data_ptr<int64_t>() + t * s.samples, s, T(1 + alpha / beta),
                            T(marginal_weight / (marginal_weight + beta)), q.mutable_data_ptr<T>() + at,
                            work);
    });
  });
  return q;
}

Tensor w_update_cpu(const Tensor& features,     // [T, N, d]
                    const Tensor& weights,      // [T, K, d]
                    const Tensor& probs,        // [T, N, K]
                    const Tensor& assignments,  // [T, N, K]
                    const Tensor& labels,       // [T, N]
                    double lam, double alpha, double beta) {
  const Shape s = check_features("w_update", features, weights);
  const ScalarType real = features.scalar_type();
  check_tensor("w_update", "probs", probs, real, {s.tasks, s.samples, s.classes});
  check_tensor("w_update", "assignments", assignments, real, {s.tasks, s.samples, s.classes});
  check_tensor("w_update", "labels", labels, ScalarType::Long, {s.tasks, s.samples});
  Tensor out = new_tensor(weights, {s.tasks, s.classes, s.dim}, real);
  constexpr int64_t columns = 192;  // of W, per piece
  with_type(features, [&](auto zero) {
    using T = decltype(zero);
    for_pieces<T>(s, (s.dim + columns - 1) / columns, [&](int64_t t, int64_t piece, void* work) {
      const int64_t c0 = piece * columns, nk = t * s.samples * s.classes, kd = t * s.classes * s.dim;
      kernels<T>().w_update(features.const_data_ptr<T>() + t * s.samples * s.dim,
                            weights.const_data_ptr<T>() + kd, probs.const_data_ptr<T>() + nk,
                            assignments.const_data_ptr<T>() + nk,
                            labels.const_data_ptr<int64_t>() + t * s.samples, s, T(lam / (beta + alpha)), c0,
                            std::min(columns, s.dim - c0), out.mutable_data_ptr<T>() + kd, work);
    });
  });
  return out;
}

}  // namespace
}  // namespace tim_ext

STABLE_TORCH_LIBRARY_IMPL(tim_ext, CPU, m) {
  m.impl("distance_softmax", TORCH_BOX(&tim_ext::distance_softmax_cpu));
  m.impl("q_update", TORCH_BOX(&tim_ext::q_update_cpu));
  m.impl("w_update", TORCH_BOX(&tim_ext::w_update_cpu));
}
