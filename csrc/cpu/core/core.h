// The torch-free core of the CPU solvers: plain pointers, sizes and parameters.
//
// A solve passes through: adm.cpp or gd.cpp (what to run) -> batch.h (tasks, threads) -> kernels() (the
// instruction set) -> kernels/adm_dual-inl.h, adm_primal-inl.h or gd-inl.h (the iterations).
#pragma once

#include <cstdint>

#include "common/numbers.h"
#include "common/problem.h"

namespace tim_ext {

// How to run n independent pieces of work: body(context, i) for i in 0 .. n - 1.
// Pieces never communicate, so any order and any number of threads gives the same bits.
//
// pause(asked), unless null, is called every so often where a solve can end early: between its iterations, between tasks, and
// while a thread waits for the others; on any thread of the team. What it throws ends the call, on all threads.
struct Team {
  int threads;
  void (*parallel)(int64_t n, void (*body)(void*, int64_t), void* context);
  void (*pause)(void* asked) = nullptr;
  void* asked = nullptr;
};

void adm_solve(const Batch& batch, const AdmParams& params, const Outputs& outputs, const Team& team);
void gd_solve(const Batch& batch, const GdParams& params, const Outputs& outputs, const Team& team);
void gd_gradient(const Batch& batch, const GdParams& params, const Gradient& out, const Team& team);

// The halves of an iteration on a part of a task, which lies in task 0 of `part`; see kernels/shard-inl.h. T is the type
// that features compute in, void where it is not known yet. A part with a label out of range is refused in status[3].
// mean [dim] or null is subtracted from the samples; the caller has subtracted it from the weights.
constexpr int64_t kShardLanes = 256;  // log p is kept for whole blocks of so many samples
constexpr int64_t shard_lanes(int64_t samples) { return round_up(samples, kShardLanes); }

template <class T>
struct ShardSoftmax {
  const T* scale = nullptr;  // [n]
  const T* mean = nullptr;
  const T* weights = nullptr;  // [K, dim]
  T* log_probs = nullptr;      // [shard_lanes(n) * K], written
  T* before = nullptr;         // [shard_lanes(n) * K] p at the weights before, replaced by p; or null
  double* columns = nullptr;   // [3, K]
  double* scalars = nullptr;   // [4]
};
template <class T>
struct ShardSums {
  const T* scale = nullptr;  // [n]
  const T* mean = nullptr;
  T* log_probs = nullptr;     // [shard_lanes(n) * K], only read
  const T* factor = nullptr;  // [K] see From (TIM-ADM), or marginal_k of gradient_block (TIM-GD)
  double* sums = nullptr;     // [K, dim]
  double* totals = nullptr;   // [K]
};
template <class T>
struct ShardClassify {
  const T* scale = nullptr;  // [n]
  const T* mean = nullptr;
  const T* weights = nullptr;      // [K, dim]
  T* probs = nullptr;              // [n, K] or null
  int64_t* predictions = nullptr;  // [n]
  T* confidences = nullptr;        // [n] the largest probability
};

// scale [n] = 1 / ||x_i||, or 1; extreme: whether some of them left the range, so that rows must be normalised first.
void shard_scale(const Batch& part, bool normalize, void* scale, bool* extreme, int64_t* status,
                 const Team& team);
void shard_softmax(const Batch& part, const ShardParams& params, const ShardSoftmax<void>& arrays,
                   int64_t* status, const Team& team);
void shard_sums(const Batch& part, const ShardParams& params, const ShardSums<void>& arrays, int64_t* status,
                const Team& team);
void shard_classify(const Batch& part, const ShardParams& params, const ShardClassify<void>& arrays,
                    int64_t* status, const Team& team);

// The instruction set in use: "avx512", "avx2" or "baseline"; "neon" on Arm. TIM_EXT_CPU_CAPABILITY lowers it.
const char* cpu_capability();

}  // namespace tim_ext
