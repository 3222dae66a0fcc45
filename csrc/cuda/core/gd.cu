// A batch of TIM-GD tasks on the GPU: parameters, workspace and launches.
#include "cuda/core/gd_kernels.cuh"
#include "cuda/core/launch.h"

namespace tim_ext {
namespace cuda {
namespace {

template <class T>
struct Prepared {
  Schedule schedule;
  std::vector<GroupSlots> slots;
  int64_t slots_total;
};

template <class T>
Prepared<T> plan(const Batch& batch, const GdParams& params, const Device& device) {
  Prepared<T> p;
  const double rounds = double(params.iterations) + 1;
  p.schedule = make_schedule(batch, params.iterations, device, [&](int64_t n, int64_t K) {
    return Plan{0, rounds * 2 * double(n) * double(batch.dim) * double(K), true};
  });
  p.slots = plan_slots(p.schedule, device, [&](int, int64_t n, int K) {
    return take_gd_memory<T>(nullptr, n, K, batch.dim).bytes;
  });
  p.slots_total = slots_bytes(p.slots);
  return p;
}

template <class T>
GdWeights<T> weights_of(const GdParams& p) {
  const T eps = T(p.eps) > Range<T>::smallest ? T(p.eps) : Range<T>::smallest;
  return {T(p.temperature * kLog2e),
          T(p.temperature),
          T(p.lam),
          T(p.alpha),
          T(p.marginal_weight),
          T(p.entropy_order),
          T(p.tol),
          p.iterations,
          p.lr,
          p.adam_beta1,
          p.adam_beta2,
          T(1 - p.adam_beta1),
          T(p.adam_beta2),
          T(1 - p.adam_beta2),
          eps};
}

template <class T, class Kernel>
void run(Kernel* kernel, const Batch& batch, const GdParams& params, const Outputs& out, const void* start,
         int64_t history_length, void* workspace, const Device& device, cudaStream_t stream) {
  const Prepared<T> p = plan<T>(batch, params, device);
  const Workspace<T> w = take_workspace<T>(workspace, batch, p.schedule, p.slots_total);
  const Problem<T> problem =
      prepare<T>(batch, out, p.schedule, w, params.normalize, history_length, start, stream);
  launch_group(kernel, problem, weights_of<T>(params), p.schedule.groups[0], w, w.counters, p.slots[0],
               take_primal_shared<T>(nullptr).bytes, stream);
  check(cudaGetLastError(), "gd_solve");
}

}  // namespace

size_t gd_workspace(const Batch& batch, const GdParams& params, const Device& device) {
  if (batch.dtype == Dtype::f64) {
    const auto p = plan<double>(batch, params, device);
    return size_t(take_workspace<double>(nullptr, batch, p.schedule, p.slots_total).bytes);
  }
  const auto p = plan<float>(batch, params, device);
  return size_t(take_workspace<float>(nullptr, batch, p.schedule, p.slots_total).bytes);
}

void gd_solve(const Batch& batch, const GdParams& params, const Outputs& outputs, void* workspace,
              const Device& device, cudaStream_t stream) {
  if (batch.tasks == 0) return;
  if (batch.dtype == Dtype::f64)
    run<double>(gd_kernel<double>, batch, params, outputs, nullptr, params.iterations + 1, workspace, device,
                stream);
  else
    run<float>(gd_kernel<float>, batch, params, outputs, nullptr, params.iterations + 1, workspace, device,
               stream);
}

void gd_gradient(const Batch& batch, const GdParams& params, const void* weights, void* gradient, void* terms,
                 int64_t* status, void* workspace, const Device& device, cudaStream_t stream) {
  if (batch.tasks == 0) return;
  const Outputs outputs = {nullptr, nullptr, gradient, nullptr, terms, status};
  if (batch.dtype == Dtype::f64)
    run<double>(gd_gradient_kernel<double>, batch, params, outputs, weights, 1, workspace, device, stream);
  else
    run<float>(gd_gradient_kernel<float>, batch, params, outputs, weights, 1, workspace, device, stream);
}

template <class T>
void sum_terms(const T* terms, int64_t tasks, const GdParams& params, T* loss, cudaStream_t stream) {
  if (tasks == 0) return;
  TIM_LAUNCH((sum_terms_kernel<T>), (tasks + kThreads - 1) / kThreads, kThreads, 0, stream, terms, tasks,
             T(params.lam), T(params.marginal_weight), T(params.alpha), loss);
  check(cudaGetLastError(), "gd_gradient");
}
template void sum_terms<float>(const float*, int64_t, const GdParams&, float*, cudaStream_t);
template void sum_terms<double>(const double*, int64_t, const GdParams&, double*, cudaStream_t);

}  // namespace cuda
}  // namespace tim_ext
