// What each instruction set provides. kernels/*.cpp compile the same source (kernels/table-inl.h) once per
// instruction set; kernels() picks the best table the machine can run.
#pragma once

#include "common/baseline_steps.h"
#include "common/steps.h"
#include "cpu/core/core.h"

namespace tim_ext {

// One task in solver order: support samples first, then queries; padding is gone.
struct Task {
  Dtype dtype = Dtype::f32;
  const void* features = nullptr;  // [M, dim]
  int64_t dim = 0;
  const int64_t* rows = nullptr;      // [N] row of each sample
  const int64_t* position = nullptr;  // [N] its position in the caller's task
  const int32_t* labels = nullptr;    // [N] class, or -1 for a query
  int64_t support = 0, query = 0, classes = 0;
  const double* class_prior = nullptr;  // [K] or null: uniform
  const void* weights = nullptr;        // [K, dim] the first W, of the type computed in, or null: prototypes
  // In the order of the caller's task and of the type computed in, for queries alone; or null.
  const void* sample_weight = nullptr;     // [N], null: 1
  double weight_scale = 1;                 // of the sample weights; 0 if they are all 0
  const void* sample_log_prior = nullptr;  // [N, K]
  // [dim], of the type computed in and padded to 64 bytes: a vector that is subtracted from every sample and every w_k,
  // so that a part that all samples share costs no digits. Null: nothing is subtracted.
  const void* mean = nullptr;
  double smoothing = 0;  // reach in the Gram domain; 0: none is wanted, or the features are smoothed already
  bool centred = false;  // features are z_i = scale_i x_i - mean already, of the type computed in
  // Samples that are read twice alone, of the type computed in and with a scale of 1, are centred as they are read.
  bool centred_in_registers = false;
  int64_t samples() const { return support + query; }
  bool has_queries() const { return query > 0 && weight_scale > 0; }  // that count
  int64_t history_terms() const { return sample_log_prior ? 4 : 3; }
};

template <class T>
struct TaskOutputs {
  T* probs = nullptr;              // [N_t, K] in the caller's order, or null
  int64_t* predictions = nullptr;  // [N_t]
  T* weights = nullptr;            // [K, dim] or null
  T* history = nullptr;            // [iterations + 1, history_terms] or null
  T* proportions = nullptr;        // [K] or null
  T* marginal_weight = nullptr;    // [1]
  int64_t* iterations = nullptr;   // [1]
  int64_t* status = nullptr;       // [3]
  T* confidences = nullptr;        // [N_t] the largest probability, or null
};

template <class T>
struct TaskGradient {
  const T* weights = nullptr;  // [K, dim]
  T* gradient = nullptr;       // [K, dim]
  T* terms = nullptr;          // [3]
};

constexpr int64_t kStepRows = 128;  // samples that one call of distance_softmax takes at most

// What measuring the rows of a task says.
enum class Rows {
  ordinary,
  extreme,    // some norm is so small or large that its square leaves the range of T
  not_finite  // *bad is the first sample that holds NaN or Inf
};

struct SmoothingMemory {
  int64_t bytes;     // of workspace
  int64_t elements;  // of the smoothed copy: more than N dim in between
};

template <class T>
struct Kernels {
  // scale[i] = 1 / ||x_i|| (0 for a zero row), or 1 if !normalize.
  Rows (*measure_rows)(const Task&, bool normalize, T* scale, int64_t* bad);
  // out[i, :] = sqrt(x_i + kLeastRoot); false, and out is of no use, if some x is negative.
  bool (*root_rows)(const Task&, T* out);
  // out[i, :] = x_i / ||x_i|| without overflow; for tasks with extreme rows.
  void (*normalize_rows)(const Task&, T* out);
  // The mean of scale_i x_i [dim, padded to 64 bytes]; total [dim] is scratch.
  void (*mean_row)(const Task&, const T* scale, double* total, T* mean);
  // out[i, :] = scale_i x_i - task.mean
  void (*centre_rows)(const Task&, const T* scale, T* out);
  // out[i, :] = z'_i - shift, the samples smoothed over their neighbour graph; shift [dim]. See graph-inl.h.
  SmoothingMemory (*smoothing_memory)(const Task&, const Team&);
  void (*smooth_rows)(const Task&, double reach, const T* scale, T* out, T* shift, const Team&, void* work);
  // Bytes of 64-byte aligned workspace for one task.
  int64_t (*dual_workspace)(const Task&, const AdmParams&);
  int64_t (*primal_workspace)(const Task&, const AdmParams&);
  void (*dual)(const Task&, const AdmParams&, const T* scale, const TaskOutputs<T>&, const Team&, void* work);
  void (*primal)(const Task&, const AdmParams&, const T* scale, const TaskOutputs<T>&, const Team&,
                 void* work);
  int64_t (*gd_workspace)(const Task&, const GdParams&);
  void (*gd)(const Task&, const GdParams&, const T* scale, const TaskOutputs<T>&, const Team&, void* work);
  // Whether the gradient is finite.
  bool (*gd_gradient)(const Task&, const GdParams&, const T* scale, const TaskGradient<T>&, const Team&,
                      void* work);
  // The step operators on one task, or on rows first .. first + count - 1 of it. See the kernels of their names.
  int64_t (*step_workspace)(const StepShape&);
  void (*distance_softmax)(const Laid<DistanceSoftmax<T>>&, int64_t task, int64_t first, int64_t count,
                           void* work);
  void (*q_update)(const Laid<QUpdate<T>>&, int64_t task, const Team&, void* work);
  void (*w_update)(const Laid<WUpdate<T>>&, int64_t task, const Team&, void* work);
  // The operators behind the baselines on one task, and the bytes of workspace that they ask for.
  int64_t (*gather_tasks_workspace)(const GatherTasks<T>&);
  void (*gather_tasks)(const GatherTasks<T>&, int64_t task, void* work);
  int64_t (*bd_cspn_workspace)(const BdCspn<T>&);
  void (*bd_cspn)(const BdCspn<T>&, int64_t task, void* work);
  int64_t (*laplacian_shot_workspace)(const LaplacianShot<T>&);
  void (*laplacian_shot)(const LaplacianShot<T>&, int64_t task, void* work);
  int64_t (*pt_map_workspace)(const PtMap<T>&);
  void (*pt_map)(const PtMap<T>&, int64_t task, void* work);
  // See peak-inl.h.
  int64_t (*multiply_add_rounds)(int64_t rounds, T* sink);
  // The halves of an iteration on a part of a task; see shard-inl.h.
  int64_t (*shard_workspace)(const Task&);
  void (*shard_softmax)(const Task&, const ShardParams&, const ShardSoftmax<T>&, const Team&, void* work);
  void (*shard_sums)(const Task&, const ShardParams&, const ShardSums<T>&, const Team&, void* work);
  void (*shard_classify)(const Task&, const ShardParams&, const ShardClassify<T>&, int64_t* status,
                         const Team&, void* work);
};

template <class T>
const Kernels<T>& kernels();

// One per instruction set, defined by kernels/table-inl.h; those that the machine's architecture does not have are missing.
namespace baseline {
template <class T>
const Kernels<T>& table();
}
namespace avx2 {
template <class T>
const Kernels<T>& table();
}
namespace avx512 {
template <class T>
const Kernels<T>& table();
}

}  // namespace tim_ext
