// A batch of TIM-ADM tasks on the GPU: which kernel each task gets, the workspace and the launches.
#include <type_traits>

#include "cuda/core/adm_kernels.cuh"
#include "cuda/core/launch.h"

namespace tim_ext {
namespace cuda {
namespace {

// Kinds of tasks: up to 8, G in registers in tiles of that size; G in shared memory; in global memory; primal.
enum Kind { kRegisters = 8, kSharedGram, kGlobalGram, kPrimal };

// f(constant) for the smallest tile that holds n samples; none: false.
template <class F>
bool with_tile(int64_t n, F f) {
  if (n <= 80)
    f(std::integral_constant<int, 5>{});  // 5-way 1-shot with 15 queries per class: N = 80
  else if (n <= 112)
    f(std::integral_constant<int, 7>{});  // 5-shot: N = 100
  else if (n <= 128)
    f(std::integral_constant<int, 8>{});
  else
    return false;
  return true;
}

template <class T>
Plan choose(int64_t samples, int64_t classes, int64_t dim, const AdmParams& params, Form form, bool registers,
            const Device& device) {
  const double n = double(samples), d = double(dim), k = double(classes), i = double(params.iterations);
  double dual = n * n * d / 2 + i * (n * n * (k - 1) + 40 * n * k);
  double primal = i * (2 * n * d * k + 50 * n * k);
  if (smooths(
          params)) {  // an inverse and two products; all cosines, and some 25 steps over 20 edges of a sample
    dual += 3 * n * n * n;
    primal += n * n * d + 500 * n * d;
  }
  Plan plan;
  if (form != Form::primal) {
    plan.cost = dual;
    if (registers)
      with_tile(samples, [&](auto size) {
        constexpr int Tile = decltype(size)::value;
        if (take_register_memory<Tile>(nullptr, int(classes)).bytes <= device.shared_per_block)
          plan.kind = Tile;
      });
    if (plan.kind > 0) return plan;
    const bool affordable = n * n * sizeof(T) <= kGramLimit && dual <= primal;
    if (form == Form::dual || affordable) {
      const bool shared = take_dual_shared<T>(nullptr, samples).bytes <= device.shared_per_block;
      plan.kind = shared ? kSharedGram : kGlobalGram;
      plan.shareable = !shared;
      return plan;
    }
  }
  plan.kind = kPrimal;
  plan.cost = primal;
  plan.shareable = true;
  return plan;
}

template <class T>
Prepared plan(const Batch& batch, const AdmParams& params, const Device& device) {
  // Weights that are not made of the samples have no coefficients: with a first W there is only the primal form.
  const Form form = batch.weights ? Form::primal : params.form;
  const bool registers = sizeof(T) == 4 && !smooths(params) && !params.chooses_steps && !knows_samples(batch);
  return make_plan(
      batch, params.iterations, device,
      [&](int64_t n, int64_t K) { return choose<T>(n, K, batch.dim, params, form, registers, device); },
      [&](int kind, int64_t n, int K) -> int64_t {
        if (kind <= kRegisters) return 0;
        return kind == kPrimal
                   ? take_adm_primal_memory<T>(nullptr, n, K, batch.dim, params).bytes
                   : take_dual_memory<T>(nullptr, n, K, batch.dim, kind == kGlobalGram, params).bytes;
      });
}

template <class T>
AdmWeights<T> weights_of(const AdmParams& params) {
  AdmWeights<T> c{};
  static_cast<AdmCoefficients<T>&>(c) = adm_coefficients<T>(params);
  c.tol = T(params.tol);
  c.iterations = params.iterations;
  c.decides_marginal = params.decides_marginal;
  c.beta = T(params.beta);
  c.smooths_by_shots = params.smooths_by_shots;
  c.smoothing = params.smoothing;
  c.chooses_steps = params.chooses_steps;
  c.in_log_p = c.prior_power / c.power;
  return c;
}

template <int Tile>
void launch_registers(const Problem<float>& problem, const AdmWeights<float>& weights, const Group& group,
                      const Schedule& schedule, Slices& slices, cudaStream_t stream) {
  int classes = 1;
  for (int i = group.first; i < group.first + group.count; ++i)
    classes = std::max(classes, schedule.table[size_t(i)].classes);
  const int64_t shared = take_register_memory<Tile>(nullptr, classes).bytes;
  allow_shared(adm_registers_kernel<Tile>, shared);
  slices.each(schedule.costs, group.first, group.count, [&](int first, int count) {
    TIM_LAUNCH((adm_registers_kernel<Tile>), count, kThreads, size_t(shared), stream, problem, weights,
               first);
  });
}

template <class T>
void solve(const Batch& batch, const AdmParams& params, const Outputs& out, void* workspace,
           const Device& device, cudaStream_t stream) {
  const Prepared p = plan<T>(batch, params, device);
  const Workspace<T> w = take_workspace<T>(workspace, batch, p.schedule, p.slots_total);
  const Problem<T> problem = prepare<T>(batch, out, p.schedule, w, params.normalize, params.marginal_weight,
                                        params.iterations + 1, nullptr, stream);
  const AdmWeights<T> weights = weights_of<T>(params);
  unsigned* counters = w.counters;
  Slices slices(device.pace, stream);
  for (size_t g = 0; g < p.schedule.groups.size(); ++g) {
    const Group& group = p.schedule.groups[g];
    if constexpr (sizeof(T) == 4)
      if (group.kind <= kRegisters)
        with_tile(group.kind * 16, [&](auto size) {
          launch_registers<decltype(size)::value>(problem, weights, group, p.schedule, slices, stream);
        });
    if (group.kind == kSharedGram || group.kind == kGlobalGram) {
      const int64_t in_shared = group.kind == kSharedGram ? group.samples : 0;
      launch_group(adm_dual_kernel<T>, problem, weights, p.schedule, group, w, counters, p.slots[g],
                   take_dual_shared<T>(nullptr, in_shared).bytes, device, slices, stream, in_shared);
    } else if (group.kind == kPrimal) {
      launch_group(adm_primal_kernel<T>, problem, weights, p.schedule, group, w, counters, p.slots[g],
                   take_primal_shared<T>(nullptr).bytes, device, slices, stream);
    }
    counters += 1 + group.teams.size();
  }
  check(cudaGetLastError(), "adm_solve");
}

}  // namespace

size_t adm_workspace(const Batch& batch, const AdmParams& params, const Device& device) {
  return with_real(batch.dtype, [&](auto zero) {
    using T = decltype(zero);
    return workspace_bytes<T>(batch, plan<T>(batch, params, device));
  });
}

void adm_solve(const Batch& batch, const AdmParams& params, const Outputs& outputs, void* workspace,
               const Device& device, cudaStream_t stream) {
  if (batch.tasks == 0) return;
  with_real(batch.dtype,
            [&](auto zero) { solve<decltype(zero)>(batch, params, outputs, workspace, device, stream); });
}

Device current_device() {
  int device = 0;
  Device found{};
  check(cudaGetDevice(&device), "cudaGetDevice");
  check(cudaDeviceGetAttribute(&found.processors, cudaDevAttrMultiProcessorCount, device),
        "reading the number of multiprocessors");
  check(cudaDeviceGetAttribute(&found.shared_per_block, cudaDevAttrMaxSharedMemoryPerBlockOptin, device),
        "reading the size of shared memory");
  return found;
}

}  // namespace cuda
}  // namespace tim_ext
