// The torch-free core of the CPU solvers: plain pointers, sizes and parameters.
//
// A solve passes through: adm.cpp (splits the batch into tasks, spreads them over threads)
// -> kernels() (the instruction set) -> dual.h or primal.h (the iterations).
#pragma once

#include <cstdint>

#include "common/status.h"

namespace tim_ext {

enum class Dtype { f32, f64, f16, bf16 };
enum class Solver { automatic, dual, primal };

struct AdmParams {
  double lam, alpha, beta, temperature, marginal_weight;
  int64_t iterations;
  double tol;  // stop when no probability moved by more than this; 0 = never
  bool normalize;
  Solver solver;
};

// A flat batch of tasks; see ops.cpp for the meaning of each array.
struct AdmBatch {
  Dtype dtype;           // of features; half types are computed in float32
  const void* features;  // [M, dim]
  int64_t pool_rows;     // M
  int64_t dim;
  const int64_t* rows;     // [R] or null
  const int64_t* labels;   // [R]
  const int64_t* offsets;  // [T + 1]
  const int64_t* classes;  // [T]
  int64_t tasks;           // T
};

// Where results go; T is float or double. Null pointers are not computed.
struct AdmOutputs {
  void* probs;           // [sum_t N_t K_t]
  int64_t* predictions;  // [R]
  void* weights;         // [sum_t K_t, dim]
  int64_t* iterations;   // [T]
  void* history;         // [T, iterations + 1, 3]
  int64_t* status;       // [T, 3]
};

// How to run n independent pieces of work: body(context, i) for i in 0 .. n - 1.
// Pieces never communicate, so any order and any number of threads gives the same bits.
struct Team {
  int threads;
  void (*parallel)(int64_t n, void (*body)(void*, int64_t), void* context);
};

void adm_solve(const AdmBatch& batch, const AdmParams& params, const AdmOutputs& outputs, const Team& team);

// The instruction set in use: "avx512", "avx2" or "baseline". TIM_EXT_CPU_CAPABILITY lowers it.
const char* cpu_capability();

}  // namespace tim_ext
