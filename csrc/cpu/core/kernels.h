// What each instruction set provides. kernels/*.cpp compile the same source (kernels/table-inl.h) once per
// instruction set; kernels() picks the best table the machine can run.
#pragma once

#include "cpu/core/core.h"

namespace tim_ext {

// One task in solver order: support samples first, then queries; padding is gone.
struct Task {
  Dtype dtype;
  const void* features;  // [M, dim]
  int64_t dim;
  const int64_t* rows;      // [N] row of each sample
  const int64_t* position;  // [N] its position in the caller's task
  const int32_t* labels;    // [N] class, or -1 for a query
  int64_t support, query, classes;
  const double* class_prior;  // [K] or null: uniform
  int64_t samples() const { return support + query; }
};

template <class T>
struct TaskOutputs {
  T* probs;              // [N_t, K] in the caller's order, or null
  int64_t* predictions;  // [N_t]
  T* weights;            // [K, dim] or null
  T* history;            // [iterations + 1, 3] or null
  int64_t* iterations;   // [1]
  int64_t* status;       // [3]
  T* confidences;        // [N_t] the largest probability, or null
};

constexpr int64_t kStepRows = 128;  // samples that one call of distance_softmax takes at most

// One task of a step operator.
struct StepShape {
  int64_t samples, classes, dim;
};

// What measuring the rows of a task says.
enum class Rows {
  ordinary,
  extreme,    // some norm is so small or large that its square leaves the range of T
  not_finite  // *bad is the first sample that holds NaN or Inf
};

template <class T>
struct Kernels {
  // scale[i] = 1 / ||x_i|| (0 for a zero row), or 1 if !normalize.
  Rows (*measure_rows)(const Task&, bool normalize, T* scale, int64_t* bad);
  // out[i, :] = x_i / ||x_i|| without overflow; for tasks with extreme rows.
  void (*normalize_rows)(const Task&, T* out);
  // Bytes of 64-byte aligned workspace for one task.
  int64_t (*dual_workspace)(const Task&, const AdmParams&);
  int64_t (*primal_workspace)(const Task&, const AdmParams&);
  void (*dual)(const Task&, const AdmParams&, const T* scale, const TaskOutputs<T>&, const Team&, void* work);
  void (*primal)(const Task&, const AdmParams&, const T* scale, const TaskOutputs<T>&, const Team&,
                 void* work);
  int64_t (*gd_workspace)(const Task&, const GdParams&);
  void (*gd)(const Task&, const GdParams&, const T* scale, const TaskOutputs<T>&, const Team&, void* work);
  // Loss terms [3] and dL/dW [K, dim] at W = weights [K, dim].
  void (*gd_gradient)(const Task&, const GdParams&, const T* scale, const T* weights, T* gradient, T* terms,
                      const Team&, void* work);
  // The step operators on a piece of one task; see steps.h.
  int64_t (*step_workspace)(const StepShape&);
  void (*distance_softmax)(const T* features, const T* weights, const StepShape&, T temperature, int64_t i0,
                           int64_t n, T* probs, T* log_probs, void* work);
  void (*q_update)(const T* log_probs, const int64_t* labels, const StepShape&, T power, T marginal_power,
                   T* q, void* work);
  void (*w_update)(const T* features, const T* weights, const T* probs, const T* assignments,
                   const int64_t* labels, const StepShape&, T support_weight, int64_t c0, int64_t n, T* out,
                   void* work);
  // See peak.h.
  int64_t (*multiply_add_rounds)(int64_t rounds, T* sink);
  // The halves of an iteration on a part of a task; see shard.h.
  int64_t (*shard_workspace)(const Task&);
  void (*shard_softmax)(const Task&, const ShardParams&, const T* scale, const T* weights, T* log_probs,
                        T* before, double* columns, double* scalars, const Team&, void* work);
  void (*shard_adm_sums)(const Task&, const ShardParams&, const T* scale, const T* factor, T* log_probs,
                         double* sums, double* totals, const Team&, void* work);
  void (*shard_gd_sums)(const Task&, const ShardParams&, const T* scale, const T* marginal, T* log_probs,
                        double* sums, double* totals, const Team&, void* work);
  void (*shard_classify)(const Task&, double temperature, const T* scale, const T* weights,
                         const TaskOutputs<T>&, const Team&, void* work);
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
