// A batch as kernels see it: the task table, the samples that count, and where results go.
#pragma once

#include "common/problem.h"
#include "cuda/core/block.cuh"

namespace tim_ext {
namespace cuda {

// One task. The table is sorted, the heaviest task first.
struct TaskEntry {
  int64_t first_sample, first_prob, first_class;  // in the flat arrays
  int task, samples, classes, reserved;           // samples: with padding
};

// What prepare_kernel found.
struct TaskSamples {
  int count, support;  // samples without padding
  int refused;
  int reserved;
};

template <class T>
struct Problem {
  const void* features;  // [M, dim]
  Dtype dtype;
  bool aligned;       // whether rows allow vector loads
  bool checks_start;  // whether a task whose initial weights are not finite is refused
  int64_t pool_rows, dim;
  const int64_t* rows;        // [R] or null
  const int64_t* labels;      // [R]
  const double* log_priors;   // [sum_t K_t] or null: see log_prior_of
  const TaskEntry* table;     // [T]
  const T* start;             // [sum_t K_t, dim]: initial weights, or null for the prototypes
  const T* sample_weight;     // [R] or null; see Batch
  const T* sample_log_prior;  // [sum_t N_t K_t] or null

  // made by prepare_kernel: the samples of each task without padding, in order, at first_sample
  TaskSamples* samples;  // [T], in the order of the table
  int* position;         // [R] in the task
  int* label;            // [R]
  int64_t* row;          // [R]
  T* scale;  // [R, 2]: z = x * scale[0] * scale[1]; the first is a power of 2, 1 unless x is extreme
  int* support_count;  // [sum_t K_t]
  // [T, mean_pitch], 0 beyond dim: subtracted from all samples and all w_k, so that a part that all samples share costs
  // no digits; W gets it back at the end
  T* mean;
  int64_t mean_pitch;
  // what is given for single samples, in the same order; null if nothing is
  T* share;          // [R]  v_i of queries, 1 on average; 0 of other samples
  T* sample_priors;  // [K][count] of each task at first_prob: log2 prior_ik of queries, 0 of other samples; or null
  int* counting;  // [T]  whether any query has a share

  // results, or null; see Outputs
  T* probs;
  int64_t* predictions;
  T* weights;
  int64_t* iterations;
  T* history;
  T* proportions;
  T* marginal_weights;
  int64_t* status;
  int64_t history_length;  // planned iterations + 1
  int history_terms;       // see history_terms
  T marginal_weight;       // of the first iterations
};

template <class T>
__device__ __forceinline__ T convert(float x) {
  return T(x);
}
template <class T>
__device__ __forceinline__ T convert(double x) {
  return T(x);
}
template <class T>
__device__ __forceinline__ T convert(__half x) {
  return T(__half2float(x));
}
template <class T>
__device__ __forceinline__ T convert(__nv_bfloat16 x) {
  return T(__bfloat162float(x));
}

template <class In>
__device__ __forceinline__ void load_halves(const In* from, float (&v)[4]) {
  alignas(8) In x[4];
  *reinterpret_cast<uint2*>(x) = *reinterpret_cast<const uint2*>(from);
#pragma unroll
  for (int j = 0; j < 4; ++j) v[j] = convert<float>(x[j]);
}

// The samples of one task, z_i, as rows of vectors. The type of the features is a run-time choice: the branch is the
// same for all threads, and the kernels need not be compiled for each.
template <class T>
struct FeatureRows {
  const void* features;
  Dtype dtype;
  bool aligned;
  int64_t dim;
  const int64_t* row;  // of the task's samples
  const T* scale;
  const T* mean;  // [dim], 0 up to a whole vector

  __device__ __forceinline__ T element(int64_t at) const {
    if constexpr (sizeof(T) == 8) return static_cast<const double*>(features)[at];
    if (dtype == Dtype::f32) return convert<T>(static_cast<const float*>(features)[at]);
    if (dtype == Dtype::f16) return convert<T>(static_cast<const __half*>(features)[at]);
    return convert<T>(static_cast<const __nv_bfloat16*>(features)[at]);
  }
  // Elements c, c + 1, ... of the row of sample i; those beyond dim are 0.
  __device__ __forceinline__ void load_raw(int64_t i, int64_t c, T (&v)[kVector<T>]) const {
    load_at(row[i] * dim + c, c, v);
  }
  __device__ __forceinline__ void load_at(int64_t at, int64_t c, T (&v)[kVector<T>]) const {
    if (!aligned || c >= dim) {
#pragma unroll
      for (int j = 0; j < kVector<T>; ++j) v[j] = c + j < dim ? element(at + j) : T(0);
    } else if constexpr (sizeof(T) == 8) {
      load_vector(static_cast<const double*>(features) + at, v);
    } else if (dtype == Dtype::f32) {
      load_vector(static_cast<const float*>(features) + at, v);
    } else if (dtype == Dtype::f16) {
      load_halves(static_cast<const __half*>(features) + at, v);
    } else {
      load_halves(static_cast<const __nv_bfloat16*>(features) + at, v);
    }
  }
  // One row, with what must be looked up for it.
  struct Row {
    int64_t start;
    T a, b;
  };
  __device__ __forceinline__ Row open(int64_t i) const {
    return {row[i] * dim, scale[2 * i], scale[2 * i + 1]};
  }
  __device__ __forceinline__ void load_scaled(const Row& of, int64_t c, T (&v)[kVector<T>]) const {
    load_at(of.start + c, c, v);
#pragma unroll
    for (int j = 0; j < kVector<T>; ++j) v[j] = v[j] * of.a * of.b;
  }
  // z_i = x_i * scale - mean
  __device__ __forceinline__ void load(const Row& of, int64_t c, T (&v)[kVector<T>]) const {
    load_scaled(of, c, v);
    if (c < dim) {
      T m[kVector<T>];
      load_vector(mean + c, m);
#pragma unroll
      for (int j = 0; j < kVector<T>; ++j) v[j] -= m[j];
    }
  }
  __device__ __forceinline__ void load(int64_t i, int64_t c, T (&v)[kVector<T>]) const {
    load(open(i), c, v);
  }
};

// Rows of a matrix in memory, `pitch` apart, a multiple of kVector<T>.
template <class T>
struct MatrixRows {
  const T* matrix;
  int64_t pitch;
  int64_t columns;  // what lies beyond is 0; a multiple of kVector<T>

  using Row = const T*;
  __device__ __forceinline__ Row open(int64_t i) const { return matrix + i * pitch; }
  __device__ __forceinline__ void load(int64_t i, int64_t c, T (&v)[kVector<T>]) const {
    load(open(i), c, v);
  }
  __device__ __forceinline__ void load(Row row, int64_t c, T (&v)[kVector<T>]) const {
    if (c < columns) {
      load_vector(row + c, v);
    } else {
#pragma unroll
      for (int j = 0; j < kVector<T>; ++j) v[j] = T(0);
    }
  }
};

template <class T>
__device__ __forceinline__ T* mean_of(const Problem<T>& problem, const TaskEntry& task) {
  return problem.mean + task.task * problem.mean_pitch;
}
template <class T>
__device__ __forceinline__ const T* start_of(const Problem<T>& problem, const TaskEntry& task) {
  return problem.start != nullptr ? problem.start + task.first_class * problem.dim : nullptr;
}
template <class T>
__device__ FeatureRows<T> rows_of(const Problem<T>& problem, const TaskEntry& task) {
  return {problem.features,
          problem.dtype,
          problem.aligned,
          problem.dim,
          problem.row + task.first_sample,
          problem.scale + 2 * task.first_sample,
          mean_of(problem, task)};
}

// What is given for the samples of one task: v_i in every sum over Q, and log2 prior_ik. Functions that run in every
// iteration have it as a template argument: where nothing is given, they are what they would be if it did not exist.
template <class T>
struct SampleInputs {
  static constexpr bool kGiven = true;
  const T* share;   // [n]
  const T* priors;  // [K][n] or null
  int n;
  T in_log_p;  // how often log_p has the prior, see add_priors

  __device__ __forceinline__ T weighted(int i, T x) const { return share[i] * x; }
  __device__ __forceinline__ bool counts(int i) const { return share[i] > T(0); }
  __device__ __forceinline__ T log_prior(int k, int i) const {
    return priors != nullptr ? priors[int64_t(k) * n + i] : T(0);
  }
};
template <class T>
struct NoSampleInputs {
  static constexpr bool kGiven = false;

  __device__ __forceinline__ T weighted(int, T x) const { return x; }
  __device__ __forceinline__ bool counts(int) const { return true; }
};
// f(inputs of the task), one or the other; `taken`: whether the kernel has tasks with any.
template <bool taken, class T, class F>
__device__ __forceinline__ void with_inputs(const Problem<T>& problem, const TaskEntry& task, int n,
                                            T in_log_p, F f) {
  if constexpr (taken)
    if (problem.share != nullptr) {
      const T* const priors = problem.sample_priors;
      f(SampleInputs<T>{problem.share + task.first_sample, priors ? priors + task.first_prob : nullptr, n,
                        in_log_p});
      return;
    }
  f(NoSampleInputs<T>{});
}
// Whether iterations can do anything for a task with these queries.
template <bool taken, class T>
__device__ __forceinline__ bool has_queries(const Problem<T>& problem, const TaskEntry& task, int queries) {
  if constexpr (taken)
    if (problem.share != nullptr && !problem.counting[task.task]) return false;
  return queries > 0;
}

}  // namespace cuda
}  // namespace tim_ext
