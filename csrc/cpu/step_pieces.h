// What the step operators share on the CPU: threads and workspace. Their arithmetic is in the kernels of their names.
#pragma once

#include <algorithm>
#include <atomic>

#include "common/step_operators.h"
#include "cpu/core/buffer.h"
#include "cpu/core/kernels.h"
#include "cpu/team.h"

namespace tim_ext {

// body(i, workspace) for i < n, each of about `cost` elements, on torch's threads: runs of neighbours, as the features of one
// are fetched during the one before; each thread takes the next run when it is free.
template <class T, class F>
void share_steps(const StepShape& shape, int64_t n, double cost, F body) {
  constexpr double kWorthAThread = 65536;  // elements: some microseconds
  const int64_t bytes = kernels<T>().step_workspace(shape);
  Team team = torch_team();
  team.threads =
      int(std::max(1.0, std::min({double(team.threads), double(n), double(n) * cost / kWorthAThread})));
  const int64_t run = std::max<int64_t>(1, n / (8 * team.threads));
  std::atomic<int64_t> taken{0};
  auto take = [&] {
    Buffer work;
    for (int64_t first; (first = taken.fetch_add(run)) < n;)
      for (int64_t i = first; i < std::min(n, first + run); ++i) body(i, work.at_least(bytes));
  };
  if (team.threads == 1) return take();
  team.parallel(team.threads, [](void* f, int64_t) { (*static_cast<decltype(take)*>(f))(); }, &take);
}

// body(task, piece, workspace) for all tasks and pieces.
template <class T, class F>
void for_step_pieces(const StepShape& shape, int64_t pieces, F body) {
  if (pieces == 0) return;
  const double cost = double(shape.samples) * double(shape.dim + shape.classes) / double(pieces);
  share_steps<T>(shape, shape.tasks * pieces, cost,
                 [&](int64_t i, void* work) { body(i / pieces, i % pieces, work); });
}

// body(task, team, workspace) for all tasks: side by side if there are enough, else one after the other on all threads.
template <class T, class F>
void for_step_tasks(const StepShape& shape, F body) {
  if (shape.samples == 0 && shape.dim == 0) return;  // q of no sample: nothing to write, whatever T is
  const Team all = torch_team(), alone = {1, nullptr};
  if (shape.tasks >= all.threads) {
    const double cost = double(shape.samples) * double(shape.dim + shape.classes);
    return share_steps<T>(shape, shape.tasks, cost,
                          [&](int64_t task, void* work) { body(task, alone, work); });
  }
  Buffer work;
  for (int64_t task = 0; task < shape.tasks; ++task)
    body(task, all, work.at_least(kernels<T>().step_workspace(shape)));
}

}  // namespace tim_ext
