// gather_tasks on the CPU: the samples of each task, transformed.
#include "cpu/task_pieces.h"

namespace tim_ext {
namespace {

std::tuple<Tensor, Tensor> gather_tasks_cpu(const Tensor& features,  // [M, d]
                                            const Tensor& rows,      // [B, N]
                                            const Tensor& labels,    // [B, N]
                                            const std::string& steps,
                                            const std::optional<Tensor>& base_mean) {  // [d]
  const TaskArguments given("gather_tasks", features, rows, labels, steps, base_mean, 1);
  Tensor out = new_tensor(features, {given.shape.tasks, given.shape.samples, given.shape.dim}, given.real);
  given.with_type([&](auto zero) {
    using T = decltype(zero);
    GatherTasks<T> gather = given.gather<T>();
    gather.out = out.mutable_data_ptr<T>();
    for_tasks(given, kernels<T>().gather_tasks_workspace(gather),
              [&](int64_t task, void* work) { kernels<T>().gather_tasks(gather, task, work); });
  });
  return {out, given.finite};
}

}  // namespace
}  // namespace tim_ext

STABLE_TORCH_LIBRARY_IMPL(tim_ext, CPU, m) { m.impl("gather_tasks", TORCH_BOX(&tim_ext::gather_tasks_cpu)); }
