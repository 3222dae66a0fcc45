// A batch of TIM-GD tasks on the GPU: parameters, workspace and launches.
#include "cuda/core/gd_kernels.cuh"
#include "cuda/core/launch.h"

namespace tim_ext {
namespace cuda {
namespace {

template <class T>
Prepared plan(const Batch& batch, const GdParams& params, const Device& device) {
  const double rounds = double(params.iterations) + 1;
  return make_plan(
      batch, params.iterations, device,
      [&](int64_t n, int64_t K) {
        Plan plan;
        plan.cost = rounds * 2 * double(n) * double(batch.dim) * double(K);
        plan.shareable = true;
        return plan;
      },
      [&](int, int64_t n, int K) { return take_gd_memory<T>(nullptr, n, K, batch.dim).bytes; });
}

template <class T>
GdWeights<T> weights_of(const GdParams& params) {
  GdWeights<T> c{};
  static_cast<GdCoefficients<T>&>(c) = gd_coefficients<T>(params);
  c.tol = T(params.tol);
  c.iterations = params.iterations;
  c.lr = params.lr;
  c.adam_beta1 = params.adam_beta1;
  c.adam_beta2 = params.adam_beta2;
  c.adam = adam_coefficients<T>(params);
  return c;
}

template <class T, class Kernel>
void run(Kernel* kernel, const Batch& batch, const GdParams& params, const Outputs& out, const void* start,
         int64_t history_length, void* workspace, const Device& device, cudaStream_t stream) {
  const Prepared p = plan<T>(batch, params, device);
  const Workspace<T> w = take_workspace<T>(workspace, batch, p.schedule, p.slots_total);
  const Problem<T> problem = prepare<T>(batch, out, p.schedule, w, params.normalize, params.marginal_weight,
                                        history_length, start, stream);
  Slices slices(device.pace, stream);
  launch_group(kernel, problem, weights_of<T>(params), p.schedule, p.schedule.groups[0], w, w.counters,
               p.slots[0], take_primal_shared<T>(nullptr).bytes, device, slices, stream);
}

}  // namespace

size_t gd_workspace(const Batch& batch, const GdParams& params, const Device& device) {
  return with_real(batch.dtype, [&](auto zero) {
    using T = decltype(zero);
    return workspace_bytes<T>(batch, plan<T>(batch, params, device));
  });
}

void gd_solve(const Batch& batch, const GdParams& params, const Outputs& outputs, void* workspace,
              const Device& device, cudaStream_t stream) {
  if (batch.tasks == 0) return;
  with_real(batch.dtype, [&](auto zero) {
    using T = decltype(zero);
    run<T>(gd_kernel<T>, batch, params, outputs, nullptr, params.iterations + 1, workspace, device, stream);
  });
  check(cudaGetLastError(), "gd_solve");
}

void gd_gradient(const Batch& batch, const GdParams& params, const Gradient& out, void* workspace,
                 const Device& device, cudaStream_t stream) {
  if (batch.tasks == 0) return;
  Outputs outputs;
  outputs.weights = out.gradient;
  outputs.history = out.terms;
  outputs.status = out.status;
  with_real(batch.dtype, [&](auto zero) {
    using T = decltype(zero);
    run<T>(gd_gradient_kernel<T>, batch, params, outputs, out.weights, 1, workspace, device, stream);
    TIM_LAUNCH((sum_terms_kernel<T>), (batch.tasks + kThreads - 1) / kThreads, kThreads, 0, stream,
               static_cast<const T*>(out.terms), batch.tasks, gd_coefficients<T>(params),
               static_cast<T*>(out.loss));
  });
  check(cudaGetLastError(), "gd_gradient");
}

}  // namespace cuda
}  // namespace tim_ext
