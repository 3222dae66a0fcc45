// The steps of TIM-ADM as operators of their own, on T tasks of equal shape. Arrays of the caller are sample-major,
// [T, N, K].
#pragma once

#include "cuda/core/core.h"
#include "cuda/core/products.cuh"

namespace tim_ext {
namespace cuda {

// Rows of the caller's matrix [.., dim], as they are.
template <class T>
struct PlainRows {
  const T* matrix;
  int64_t dim;
  bool aligned;

  __device__ __forceinline__ void load(int64_t i, int64_t c, T (&v)[kVector<T>]) const {
    if (aligned && c < dim) {
      load_vector(matrix + i * dim + c, v);
    } else {
#pragma unroll
      for (int j = 0; j < kVector<T>; ++j) v[j] = c + j < dim ? matrix[i * dim + c + j] : T(0);
    }
  }
};

// Rows minus w_K: of the samples and of the weights.
template <class T>
struct Differences {
  PlainRows<T> rows, weights;
  int last;

  __device__ __forceinline__ void load(int64_t i, int64_t c, T (&v)[kVector<T>]) const {
    T w[kVector<T>];
    rows.load(i, c, v);
    weights.load(last, c, w);
#pragma unroll
    for (int j = 0; j < kVector<T>; ++j) v[j] -= w[j];
  }
};

// p and log p of 64 samples of a task. shift_k = tau/2 ||w_k - w_K||^2 is small work that every block repeats.
constexpr int kSoftmaxRows = 64;
template <class T>
__global__ void __launch_bounds__(kThreads, 1)
    distance_softmax_kernel(DistanceSoftmax<T> step, bool aligned) {
  TIM_SHARED_MEMORY(memory);
  Arena arena(memory);
  const StepShape& shape = step.shape;
  const T tau = step.c.tau;
  const int K = int(shape.classes), warp = int(threadIdx.x) / kLanes, lane = lane_id();
  T* const shift = arena.take<T>(K);
  const int64_t tiles = (shape.samples + kSoftmaxRows - 1) / kSoftmaxRows, task = blockIdx.x / tiles;
  const int64_t first = blockIdx.x % tiles * kSoftmaxRows;
  const int n = int(shape.samples - first < kSoftmaxRows ? shape.samples - first : kSoftmaxRows);
  const PlainRows<T> rows{static_cast<const T*>(step.features) + (task * shape.samples + first) * shape.dim,
                          shape.dim, aligned};
  const PlainRows<T> w{step.weights + task * shape.classes * shape.dim, shape.dim, aligned};
  T* const log_p = step.log_probs + (task * shape.samples + first) * K;
  T* const p = step.probs + (task * shape.samples + first) * K;

  const T* const last = w.matrix + (K - 1) * shape.dim;
  for (int k = warp; k < K - 1; k += kWarps) {
    T sum = 0;
    for (int64_t c = lane; c < shape.dim; c += kLanes) {
      const T difference = w.matrix[k * shape.dim + c] - last[c];
      sum += difference * difference;
    }
    sum = warp_sum(sum);
    if (lane == 0) shift[k] = tau / 2 * sum;
  }
  const Team team{0, 1, nullptr, 0};
  dot_rows<T>(team, Differences<T>{rows, w, K - 1}, n, shape.dim, Differences<T>{w, w, K - 1}, K - 1,
              [&](int k, int i, T value) { log_p[i * K + k] = value; });
  __syncthreads();
  for (int i = int(threadIdx.x); i < n; i += kThreads) {
    T top = 0;
    for (int k = 0; k < K - 1; ++k) {
      const T l = log_p[i * K + k] * tau - shift[k];
      log_p[i * K + k] = l;
      top = l > top ? l : top;
    }
    T total = exp2(-top);
    for (int k = 0; k < K - 1; ++k) total += exp2(log_p[i * K + k] - top);
    const T log_total = top + log2(total);
    for (int k = 0; k < K; ++k) {
      const T value = (k < K - 1 ? log_p[i * K + k] : T(0)) - log_total;
      log_p[i * K + k] = value * T(kLn2);
      p[i * K + k] = exp2(value);
    }
  }
}

// One block per task.
template <class T>
__global__ void __launch_bounds__(kThreads, 1) q_update_kernel(QUpdate<T> step) {
  TIM_SHARED_MEMORY(memory);
  Arena arena(memory);
  const StepShape& shape = step.shape;
  const int N = int(shape.samples), K = int(shape.classes), warp = int(threadIdx.x) / kLanes,
            lane = lane_id();
  T* const factor = arena.take<T>(K);
  const int64_t* const label = step.labels + int64_t(blockIdx.x) * N;
  const T* const log_p = step.log_probs + int64_t(blockIdx.x) * N * K;
  T* const out = step.assignments + int64_t(blockIdx.x) * N * K;
  const T scale = step.c.power * T(kLog2e);
  for (int k = warp; k < K; k += kWarps) {
    T top = -INFINITY, sum = 0;
    for (int i = lane; i < N; i += kLanes) {
      const T value = label[i] == kQuery ? scale * log_p[int64_t(i) * K + k] : -INFINITY;
      top = value > top ? value : top;
    }
    top = warp_max(top);
    for (int i = lane; i < N; i += kLanes)
      if (label[i] == kQuery) sum += exp2(scale * log_p[int64_t(i) * K + k] - top);
    sum = warp_sum(sum);
    if (lane == 0) factor[k] = q_offset(step.c, top + log2(sum), T(0));
  }
  __syncthreads();
  for (int i = int(threadIdx.x); i < N; i += kThreads) {
    const T* const from = log_p + int64_t(i) * K;
    T* const to = out + int64_t(i) * K;
    if (label[i] != kQuery) {
      for (int k = 0; k < K; ++k) to[k] = T(label[i] == k);
      continue;
    }
    T top = -INFINITY, total = 0;
    for (int k = 0; k < K; ++k) {
      const T value = scale * from[k] - factor[k];
      top = value > top ? value : top;
    }
    for (int k = 0; k < K; ++k) {
      const T value = exp2(scale * from[k] - factor[k] - top);
      to[k] = value;
      total += value;
    }
    for (int k = 0; k < K; ++k) to[k] /= total;
  }
}

// c_i (target_ik - p_ik), c_i = c_S or c_Q; 0 for padding, whatever its values are.
template <class T>
struct StepWeights {
  const T *probs, *targets;  // [N, K]
  const int64_t* label;
  int K;
  T support, query;

  __device__ __forceinline__ T of(int64_t i) const {
    return label[i] >= 0 ? support : label[i] == kQuery ? query : T(0);
  }
  __device__ __forceinline__ void load(int64_t i, int k, T* w) const {
    const T c = of(i);
#pragma unroll
    for (int j = 0; j < 4; ++j)
      w[j] = k + j < K && c != T(0) ? c * (targets[i * K + k + j] - probs[i * K + k + j]) : T(0);
  }
};

// A block takes 32 vectors of columns of a task; the sums over samples are small work that every block repeats.
template <class T>
__global__ void __launch_bounds__(kThreads, 1) w_update_kernel(WUpdate<T> step, bool aligned) {
  TIM_SHARED_MEMORY(memory);
  Arena arena(memory);
  const StepShape& shape = step.shape;
  const int N = int(shape.samples), K = int(shape.classes), warp = int(threadIdx.x) / kLanes,
            lane = lane_id();
  T* const partial = arena.take<T>(kPartial<T>);
  T* const sum_p = arena.take<T>(K);
  T* const mass = arena.take<T>(K);
  int* const count = arena.take<int>(2);  // support, query
  constexpr int width = kLanes * kVector<T>;
  const int groups = int((shape.dim + width - 1) / width);
  const int64_t task = blockIdx.x / groups;
  const int64_t* const label = step.labels + task * N;
  const PlainRows<T> rows{static_cast<const T*>(step.features) + task * N * shape.dim, shape.dim, aligned};
  const T* const w = step.weights + task * K * shape.dim;
  T* const to = step.out + task * K * shape.dim;

  if (threadIdx.x < 2) count[threadIdx.x] = 0;
  __syncthreads();
  for (int i = int(threadIdx.x); i < N; i += kThreads) {
    if (label[i] >= 0) atomicAdd(count, 1);
    if (label[i] == kQuery) atomicAdd(count + 1, 1);
  }
  __syncthreads();
  StepWeights<T> c;
  c.probs = step.probs + task * N * K;
  c.targets = step.assignments + task * N * K;
  c.label = label;
  c.K = K;
  c.support = step.c.support;
  c.query = query_weight<T>(T(count[0]), T(count[1]));
  for (int k = warp; k < K; k += kWarps) {
    T of_p = 0, of_target = 0;
    for (int64_t i = lane; i < N; i += kLanes) {
      const T weight = c.of(i);
      if (weight != T(0)) {
        of_p += weight * c.probs[i * K + k];
        of_target += weight * c.targets[i * K + k];
      }
    }
    of_p = warp_sum(of_p);
    of_target = warp_sum(of_target);
    if (lane == 0) {
      sum_p[k] = of_p;
      mass[k] = of_target;
    }
  }
  // No barrier here: sum_p and mass are read only after the one in accumulate_columns.
  Team team{int(blockIdx.x % groups), groups, nullptr, 0};
  accumulate_columns_by<kClassTile>(team, rows, N, shape.dim, c, K, partial, 1, static_cast<T*>(nullptr),
                                    [&](int k, int64_t column, T sum) {
                                      const int64_t at = k * shape.dim + column;
                                      to[at] = stepped(mass[k], sum_p[k], w[at], sum);
                                    });
}

}  // namespace cuda
}  // namespace tim_ext
