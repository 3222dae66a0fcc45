// Before a solve: the task table in device memory, and for every task which samples count, their labels, rows,
// lengths and mean, what is given for each of them, and whether the task must be refused.
#pragma once

#include "common/equations.h"
#include "cuda/core/problem.cuh"

namespace tim_ext {
namespace cuda {

// Host bytes to device memory as a kernel argument: no pinned buffer that must outlive the call, nothing
// to wait for, and a CUDA graph keeps its own copy.
struct UploadPiece {
  static constexpr int kWords = 960;  // 3,840 of the 4,096 bytes that every CUDA version allows
  uint32_t words[kWords];
};
static __global__ void __launch_bounds__(kThreads, 1)
    upload_kernel(UploadPiece piece, uint32_t* to, int words) {
  for (int i = int(threadIdx.x); i < words; i += kThreads) to[i] = piece.words[i];
}

// 2^e within the range of normal numbers.
template <class T>
constexpr int kExponent = sizeof(T) == 4 ? 126 : 1022;
__device__ __forceinline__ void power_of_two(int e, float* out) { *out = __int_as_float((e + 127) << 23); }
__device__ __forceinline__ void power_of_two(int e, double* out) {
  *out = __longlong_as_double(static_cast<long long>(e + 1023) << 52);
}

// The length of row x, by one warp: scale such that x * scale[0] * scale[1] has length 1 (1, 1 if not
// normalised; a zero row stays zero). Returns false for NaN or Inf.
template <class T>
__device__ bool measure_row(const FeatureRows<T>& rows, int64_t i, bool normalize, T* scale) {
  const int lane = lane_id();
  T square = 0, v[kVector<T>];
  for (int64_t c = lane * kVector<T>; c < rows.dim; c += kLanes * kVector<T>) {
    rows.load_raw(i, c, v);
#pragma unroll
    for (int j = 0; j < kVector<T>; ++j) square += v[j] * v[j];
  }
  square = warp_sum(square);
  T a = 1, b = 1;
  bool finite = true;
  if (square > Range<T>::tiny && square < Range<T>::huge) {
    if (normalize) b = T(1) / sqrt(square);
  } else {  // rare: zero, very short or long, or not finite
    T largest = 0;
    for (int64_t c = lane * kVector<T>; c < rows.dim; c += kLanes * kVector<T>) {
      rows.load_raw(i, c, v);
#pragma unroll
      for (int j = 0; j < kVector<T>; ++j) {
        const T size = v[j] < 0 ? -v[j] : v[j];
        finite = finite && size - size == 0;  // false for Inf and NaN
        largest = size > largest ? size : largest;
      }
    }
    finite = __all_sync(kAllLanes, finite) != 0;
    largest = warp_max(largest);
    if (finite && normalize) {
      int e = largest > 0 ? -ilogb(largest) : 0;
      e = e > kExponent<T> ? kExponent<T> : e < -kExponent<T> ? -kExponent<T> : e;
      power_of_two(e, &a);
      square = 0;
      for (int64_t c = lane * kVector<T>; c < rows.dim; c += kLanes * kVector<T>) {
        rows.load_raw(i, c, v);
#pragma unroll
        for (int j = 0; j < kVector<T>; ++j) square += (v[j] * a) * (v[j] * a);
      }
      square = warp_sum(square);
      b = largest > 0 ? T(1) / sqrt(square) : T(0);
    }
  }
  if (lane == 0) {
    scale[0] = a;
    scale[1] = b;
  }
  return finite;
}

template <class T>
constexpr int kMeanPartial = kWarps * kLanes * kVector<T>;  // elements of shared memory

// The mean of the samples, by one block: lanes along the columns, warps along the samples. Any vector near it would do;
// in this order it depends on the samples alone.
template <class T>
__device__ void mean_row(const FeatureRows<T>& rows, int n, T* partial, T* mean, int64_t pitch) {
  constexpr int width = kLanes * kVector<T>;
  const int thread = int(threadIdx.x), warp = thread / kLanes, lane = lane_id();
  for (int64_t c0 = 0; c0 < pitch; c0 += width) {
    const int64_t c = c0 + lane * kVector<T>;
    T sum[kVector<T>], v[kVector<T>];
#pragma unroll
    for (int j = 0; j < kVector<T>; ++j) sum[j] = T(0);
    for (int i = warp; i < n; i += kWarps) {
      rows.load_scaled(rows.open(i), c, v);
#pragma unroll
      for (int j = 0; j < kVector<T>; ++j) sum[j] += v[j];
    }
    if (c0 > 0) __syncthreads();  // the sums of the columns before have been read
    store_vector(partial + (warp * kLanes + lane) * kVector<T>, sum);
    __syncthreads();
    for (int j = thread; j < width && c0 + j < pitch; j += kThreads) {
      T total = partial[j];
      for (int w = 1; w < kWarps; ++w) total += partial[w * width + j];
      mean[c0 + j] = total / T(n);
    }
  }
}

// What is given for single samples in the order of the samples that count, by one block; shares have a mean of 1.
template <class T>
__device__ void arrange_inputs(const Problem<T>& problem, const TaskEntry& task, int n, int queries,
                               double* sums) {
  const int thread = int(threadIdx.x), K = task.classes;
  const int* const position = problem.position + task.first_sample;
  const int* const label = problem.label + task.first_sample;
  double scale = 1;
  const T* const weight = problem.sample_weight ? problem.sample_weight + task.first_sample : nullptr;
  if (weight != nullptr) {
    double total = 0;
    for (int i = thread; i < n; i += kThreads)
      if (label[i] == int(kQuery)) total += double(weight[position[i]]);
    total = warp_sum(total);
    if (lane_id() == 0) sums[thread / kLanes] = total;
    __syncthreads();
    total = 0;
    for (int w = 0; w < kWarps; ++w) total += sums[w];
    scale = sample_weight_scale(double(queries), total);
  }
  for (int i = thread; i < n; i += kThreads) {
    const double share = weight != nullptr ? double(weight[position[i]]) * scale : 1.0;
    problem.share[task.first_sample + i] = label[i] == int(kQuery) ? T(share) : T(0);
  }
  if (thread == 0) problem.counting[task.task] = scale > 0;
  if (problem.sample_priors == nullptr) return;
  const T* const from = problem.sample_log_prior + task.first_prob;
  T* const to = problem.sample_priors + task.first_prob;
  for (int k = 0; k < K; ++k)
    for (int i = thread; i < n; i += kThreads)
      to[int64_t(k) * n + i] =
          label[i] == int(kQuery) ? from[int64_t(position[i]) * K + k] * T(kLog2e) : T(0);
}

// One block per task. A warp takes 32 samples of a row of 256 at a time; where each goes follows from counting.
template <class T>
__global__ void __launch_bounds__(kThreads, 1) prepare_kernel(Problem<T> problem, bool normalize) {
  TIM_SHARED_MEMORY(memory);
  Arena arena(memory);
  int* warp_counts = arena.take<int>(kWarps);
  // First sample with a bad label or row (support before queries), first class without support, first bad features, first
  // class with bad initial weights.
  int* first_bad = arena.take<int>(1);
  int* first_missing = arena.take<int>(1);
  int* first_not_finite = arena.take<int>(1);
  int* first_bad_weights = arena.take<int>(1);
  int* support = arena.take<int>(1);
  T* partial = arena.take<T>(kMeanPartial<T>);
  double* sums = arena.take<double>(kWarps);
  const int thread = int(threadIdx.x), warp = thread / kLanes, lane = lane_id();
  const TaskEntry task = problem.table[blockIdx.x];
  const int64_t at = task.first_sample;
  const int N = task.samples, K = task.classes;
  constexpr int kNone = 0x7fffffff;
  int* const count = problem.support_count + task.first_class;

  for (int k = thread; k < K; k += kThreads) count[k] = 0;
  if (thread == 0) {
    *first_bad = *first_missing = *first_not_finite = *first_bad_weights = kNone;
    *support = 0;
  }
  __syncthreads();

  int before = 0;  // samples that count, of earlier rounds
  for (int start = 0; start < N; start += kThreads) {
    const int i = start + thread;
    const int64_t label = i < N ? problem.labels[at + i] : kPadding;
    const bool counts = label != kPadding;
    const int64_t row = counts && problem.rows != nullptr ? problem.rows[at + i] : at + i;
    if (counts) {
      if (label < kQuery || label >= K || row < 0 || row >= problem.pool_rows)
        atomicMin(first_bad, label == kQuery ? N + i : i);
      else if (label != kQuery)
        atomicAdd(count + label, 1);
    }
    const unsigned ones = __ballot_sync(kAllLanes, counts);
    if (lane == 0) warp_counts[warp] = __popc(ones);
    __syncthreads();
    int mine = before;
    for (int w = 0; w < kWarps; ++w) {
      if (w < warp) mine += warp_counts[w];
      before += warp_counts[w];
    }
    if (counts) {
      const int64_t to = at + mine + __popc(ones & ((1u << lane) - 1));
      problem.position[to] = i;
      problem.label[to] = int(label);
      problem.row[to] = row;
    }
    __syncthreads();
  }

  for (int k = thread; k < K; k += kThreads) {
    if (count[k] == 0) atomicMin(first_missing, k);
    atomicAdd(support, count[k]);
  }
  if (*first_bad == kNone) {
    const FeatureRows<T> rows = rows_of(problem, task);
    for (int i = warp; i < before; i += kWarps)
      if (!measure_row(rows, i, normalize, problem.scale + 2 * (at + i)) && lane == 0)
        atomicMin(first_not_finite, problem.position[at + i]);
  }
  if (problem.checks_start)
    for (int64_t j = thread; j < K * problem.dim; j += kThreads) {
      const T w = problem.start[task.first_class * problem.dim + j];
      if (w - w != 0) atomicMin(first_bad_weights, int(j / problem.dim));  // true for Inf and NaN
    }
  __syncthreads();

  const bool refused = *first_bad != kNone || *first_missing != kNone || *first_not_finite != kNone ||
                       *first_bad_weights != kNone;
  if (!refused) mean_row(rows_of(problem, task), before, partial, mean_of(problem, task), problem.mean_pitch);
  if (!refused && problem.share != nullptr) arrange_inputs(problem, task, before, before - *support, sums);
  if (thread == 0) {
    TaskSamples found{};
    found.count = before;
    found.support = *support;
    found.refused = refused;
    problem.samples[blockIdx.x] = found;
    Status code = Status::ok;
    int64_t where = 0, value = 0;
    if (*first_bad != kNone) {
      where = *first_bad % N;
      const int64_t label = problem.labels[at + where];
      code = label < kQuery || label >= K ? Status::label_out_of_range : Status::row_out_of_range;
      value =
          code == Status::label_out_of_range || problem.rows == nullptr ? label : problem.rows[at + where];
    } else if (*support == 0) {
      code = Status::no_support;
      where = -1;
    } else if (*first_missing != kNone) {
      code = Status::class_without_support;
      where = -1;
      value = *first_missing;
    } else if (*first_not_finite != kNone) {
      code = Status::features_not_finite;
      where = *first_not_finite;
    } else if (*first_bad_weights != kNone) {
      code = Status::weights_not_finite;
      where = -1;
      value = *first_bad_weights;
    }
    int64_t* status = problem.status + 3 * int64_t(task.task);
    status[0] = int64_t(code);
    status[1] = where;
    status[2] = value;
    if (problem.iterations) problem.iterations[task.task] = 0;
    if (problem.marginal_weights)
      problem.marginal_weights[task.task] = refused ? T(0) / T(0) : problem.marginal_weight;
  }

  // Results that no solver writes: of padding, of refused tasks, of iterations that are not run.
  const T nan = T(0) / T(0);
  for (int64_t j = thread; j < N; j += kThreads)
    if (problem.predictions && (refused || problem.labels[at + j] == kPadding))
      problem.predictions[at + j] = kPadding;
  if (problem.probs && (refused || before < N))
    for (int64_t j = thread; j < int64_t(N) * K; j += kThreads)
      if (refused || problem.labels[at + j / K] == kPadding)
        problem.probs[task.first_prob + j] = refused ? nan : T(0);
  if (problem.weights && refused)
    for (int64_t j = thread; j < K * problem.dim; j += kThreads)
      problem.weights[task.first_class * problem.dim + j] = nan;
  if (problem.proportions && refused)
    for (int k = thread; k < K; k += kThreads) problem.proportions[task.first_class + k] = nan;
  if (problem.history)
    for (int64_t j = thread; j < problem.history_terms * problem.history_length; j += kThreads)
      problem.history[problem.history_terms * problem.history_length * task.task + j] = nan;
}

}  // namespace cuda
}  // namespace tim_ext
