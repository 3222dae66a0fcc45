// The table of the kernels of one instruction set.
#pragma once

#include "cpu/kernels/adm_dual-inl.h"
#include "cpu/kernels/adm_primal-inl.h"
#include "cpu/kernels/bd_cspn-inl.h"
#include "cpu/kernels/distance_softmax-inl.h"
#include "cpu/kernels/gather_tasks-inl.h"
#include "cpu/kernels/gd-inl.h"
#include "cpu/kernels/graph-inl.h"
#include "cpu/kernels/laplacian_shot-inl.h"
#include "cpu/kernels/peak-inl.h"
#include "cpu/kernels/prelude.h"
#include "cpu/kernels/pt_map-inl.h"
#include "cpu/kernels/q_update-inl.h"
#include "cpu/kernels/rows-inl.h"
#include "cpu/kernels/shard-inl.h"
#include "cpu/kernels/w_update-inl.h"

namespace tim_ext {
namespace TIM_ISA {

// A step on one task, as a class with the memory that it needs.
template <class Task, class Step>
int64_t task_workspace(const Step& step) {
  Arena arena(nullptr);
  Task(step, arena);
  return arena.used();
}
template <class Task, class Step>
void run_task(const Step& step, int64_t task, void* work) {
  Arena arena(work);
  Task(step, arena).run(task);
}

template <class T>
constexpr Kernels<T> make_table() {
  Kernels<T> k{};
  k.measure_rows = measure_rows<T>;
  k.root_rows = root_rows<T>;
  k.normalize_rows = normalize_rows<T>;
  k.mean_row = mean_row<T>;
  k.centre_rows = centre_rows<T>;
  k.smoothing_memory = smoothing_memory<T>;
  k.smooth_rows = smooth_rows<T>;
  k.dual_workspace = workspace_of<Dual<T>, AdmParams>;
  k.primal_workspace = workspace_of<PrimalAdm<T>, AdmParams>;
  k.dual = dual_solve<T>;
  k.primal = primal_solve<T>;
  k.gd_workspace = workspace_of<Gd<T>, GdParams>;
  k.gd = gd_solve<T>;
  k.gd_gradient = gd_gradient<T>;
  k.step_workspace = step_workspace;
  k.distance_softmax = distance_softmax_step<T>;
  k.q_update = q_update_step<T>;
  k.w_update = w_update_step<T>;
  k.gather_tasks_workspace = task_workspace<GatherTask<T>, GatherTasks<T>>;
  k.gather_tasks = run_task<GatherTask<T>, GatherTasks<T>>;
  k.bd_cspn_workspace = task_workspace<BdCspnTask<T>, BdCspn<T>>;
  k.bd_cspn = run_task<BdCspnTask<T>, BdCspn<T>>;
  k.laplacian_shot_workspace = task_workspace<LaplacianTask<T>, LaplacianShot<T>>;
  k.laplacian_shot = run_task<LaplacianTask<T>, LaplacianShot<T>>;
  k.pt_map_workspace = task_workspace<PtMapTask<T>, PtMap<T>>;
  k.pt_map = run_task<PtMapTask<T>, PtMap<T>>;
  k.multiply_add_rounds = multiply_add_rounds<T>;
  k.shard_workspace = shard_workspace<T>;
  k.shard_softmax = shard_softmax<T>;
  k.shard_sums = shard_sums<T>;
  k.shard_classify = shard_classify<T>;
  return k;
}
template <class T>
constexpr Kernels<T> kTable = make_table<T>();

template <class T>
const Kernels<T>& table() {
  return kTable<T>;
}
template const Kernels<float>& table<float>();
template const Kernels<double>& table<double>();

}  // namespace TIM_ISA
}  // namespace tim_ext
