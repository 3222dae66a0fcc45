// What a solver gets and gives, in plain pointers, sizes and parameters: the same for every device.
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

struct GdParams {
  double lam, alpha, temperature, marginal_weight;
  double entropy_order;  // of both entropies: 1 = Shannon
  int64_t iterations;
  double lr, adam_beta1, adam_beta2, eps;
  double tol;
  bool normalize;
};

// What half an iteration needs on a part of a task, whose totals are known to the caller alone.
struct ShardParams {
  double temperature;
  double support_weight, query_weight;  // of the samples in every sum: c_S and c_Q, or lam / |S| and 1 / |Q|
  double power;                         // 1 + alpha / beta of TIM-ADM; 0: no sum of p^power
  double alpha, entropy_order;          // of TIM-GD
  bool terms;                           // the sums for the loss terms, too
  bool exact;                           // q in the log domain, as p^power underflows
};

// A flat batch of tasks; see ops.cpp for the meaning of each array.
struct Batch {
  Dtype dtype;           // of features; half types are computed in float32
  const void* features;  // [M, dim]
  int64_t pool_rows;     // M
  int64_t dim;
  const int64_t* rows;        // [R] or null
  const int64_t* labels;      // [R]
  const int64_t* offsets;     // [T + 1]
  const int64_t* classes;     // [T]
  const double* class_prior;  // [sum_t K_t] or null: uniform
  int64_t tasks;              // T
};

// Where results go; T is float or double. Null pointers are not computed.
struct Outputs {
  void* probs;           // [sum_t N_t K_t]
  int64_t* predictions;  // [R]
  void* weights;         // [sum_t K_t, dim]
  int64_t* iterations;   // [T]
  void* history;         // [T, iterations + 1, 3]
  int64_t* status;       // [T, 3]
};

}  // namespace tim_ext
