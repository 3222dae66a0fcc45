// The torch-free core of the CPU solvers: plain pointers, sizes and parameters.
//
// A solve passes through: adm.cpp or gd.cpp (what to run) -> batch.h (tasks, threads) -> kernels() (the
// instruction set) -> dual.h, primal.h or gd.h (the iterations).
#pragma once

#include <cstdint>

#include "common/problem.h"

namespace tim_ext {

// How to run n independent pieces of work: body(context, i) for i in 0 .. n - 1.
// Pieces never communicate, so any order and any number of threads gives the same bits.
struct Team {
  int threads;
  void (*parallel)(int64_t n, void (*body)(void*, int64_t), void* context);
};

void adm_solve(const Batch& batch, const AdmParams& params, const Outputs& outputs, const Team& team);
void gd_solve(const Batch& batch, const GdParams& params, const Outputs& outputs, const Team& team);
// terms [T, 3] and gradient [sum_t K_t, dim] at weights [sum_t K_t, dim], of the type that features compute in.
void gd_gradient(const Batch& batch, const GdParams& params, const void* weights, void* gradient, void* terms,
                 int64_t* status, const Team& team);

// The halves of an iteration on a part of a task, which lies in task 0 of `part`; see shard.h. Pointers without a type
// are of the type that features compute in. log_probs and before hold `shard_lanes(n)` samples of K numbers.
// A part with a label out of range is refused in status[3].
constexpr int64_t shard_lanes(int64_t samples) { return (samples + 255) / 256 * 256; }
// scale [n] = 1 / ||x_i||, or 1; extreme: whether some of them left the range, so that rows must be normalised first.
void shard_scale(const Batch& part, bool normalize, void* scale, bool* extreme, int64_t* status,
                 const Team& team);
void shard_softmax(const Batch& part, const ShardParams& params, const void* scale, const void* weights,
                   void* log_probs, void* before, double* columns, double* scalars, int64_t* status,
                   const Team& team);
void shard_adm_sums(const Batch& part, const ShardParams& params, const void* scale, const void* factor,
                    const void* log_probs, double* sums, double* totals, int64_t* status, const Team& team);
void shard_gd_sums(const Batch& part, const ShardParams& params, const void* scale, const void* marginal,
                   const void* log_probs, double* sums, double* totals, int64_t* status, const Team& team);
void shard_classify(const Batch& part, double temperature, const void* scale, const void* weights,
                    void* probs, int64_t* predictions, void* confidences, int64_t* status, const Team& team);

// The instruction set in use: "avx512", "avx2" or "baseline". TIM_EXT_CPU_CAPABILITY lowers it.
const char* cpu_capability();

}  // namespace tim_ext
