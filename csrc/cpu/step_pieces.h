// What the step operators share on the CPU: threads and workspace. Their arithmetic is in kernels/steps-inl.h.
#pragma once

#include <algorithm>

#include "common/step_operators.h"
#include "cpu/core/buffer.h"
#include "cpu/core/kernels.h"
#include "cpu/team.h"

namespace tim_ext {

inline int64_t pieces_of(int64_t n, int64_t size) { return (n + size - 1) / size; }

// body(task, piece, workspace) for all tasks and pieces, on torch's threads.
template <class T, class F>
void for_pieces(const StepShape& shape, int64_t pieces, F body) {
  auto one = [&](int64_t i) {
    Buffer work;
    body(i / pieces, i % pieces, work.at_least(kernels<T>().step_workspace(shape)));
  };
  if (shape.samples == 0 && shape.dim == 0) return;  // q of no sample: nothing to write, whatever T is
  const Team team = torch_team();
  team.parallel(shape.tasks * pieces, [](void* f, int64_t i) { (*static_cast<decltype(one)*>(f))(i); }, &one);
}

}  // namespace tim_ext
