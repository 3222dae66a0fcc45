// The table of the kernels of one instruction set.
#pragma once

#include "cpu/kernels/adm_dual-inl.h"
#include "cpu/kernels/adm_primal-inl.h"
#include "cpu/kernels/distance_softmax-inl.h"
#include "cpu/kernels/gd-inl.h"
#include "cpu/kernels/graph-inl.h"
#include "cpu/kernels/peak-inl.h"
#include "cpu/kernels/prelude.h"
#include "cpu/kernels/q_update-inl.h"
#include "cpu/kernels/rows-inl.h"
#include "cpu/kernels/shard-inl.h"
#include "cpu/kernels/w_update-inl.h"

namespace tim_ext {
namespace TIM_ISA {

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
