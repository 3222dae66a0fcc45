// What the step operators share on the CPU: shapes, threads and workspace. Their arithmetic is in core/steps.h.
#pragma once

#include <algorithm>

#include "common/torch_abi.h"
#include "cpu/core/buffer.h"
#include "cpu/core/kernels.h"
#include "cpu/team.h"

namespace tim_ext {

struct TasksShape : StepShape {
  int64_t tasks;
};

// features [T, N, d] and weights [T, K, d], of one floating type.
inline TasksShape check_features(const char* op, const Tensor& features, const Tensor& weights) {
  check_floating(op, "features", features);
  check_tensor(op, "features", features, features.scalar_type(), {-1, -1, -1});
  check_tensor(op, "weights", weights, features.scalar_type(), {features.size(0), -1, features.size(2)});
  STD_TORCH_CHECK(weights.size(1) > 0, op, ": weights must hold at least one class, got ", shape_of(weights));
  return {{features.size(1), weights.size(1), features.size(2)}, features.size(0)};
}

// body(task, piece, workspace) for all tasks and pieces, on torch's threads.
template <class T, class F>
void for_pieces(const TasksShape& shape, int64_t pieces, F body) {
  auto one = [&](int64_t i) {
    Buffer work;
    body(i / pieces, i % pieces, work.at_least(kernels<T>().step_workspace(shape)));
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

}  // namespace tim_ext
