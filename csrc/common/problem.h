// What the operators get and give, in plain pointers, sizes and parameters: the same for every device. Fields are
// filled by name; a hyper-parameter that an operator does not have stays NaN.
#pragma once

#include <cstdint>
#include <limits>

#include "common/status.h"

namespace tim_ext {

enum class Dtype { f32, f64, f16, bf16 };
enum class Form { automatic, dual, primal };

constexpr double kGramLimit = 256e6;  // bytes of the Gram matrix that Form::automatic takes at most

constexpr double kLeastRoot = 1e-6;

constexpr double kNotGiven = std::numeric_limits<double>::quiet_NaN();

struct AdmParams {
  double lam = kNotGiven;
  double alpha = kNotGiven;
  double beta = kNotGiven;
  double temperature = kNotGiven;
  double marginal_weight = kNotGiven;  // in the first kDecidedAfter iterations, if the task decides it
  bool decides_marginal = false;       // see decided_marginal_weight
  double smoothing = kNotGiven;        // reach r of the smoothing over the neighbour graph; 0: none
  bool smooths_by_shots = false;       // r is that of smoothing_reach instead
  double sample_prior_weight = 0;      // lam_0; 0 without sample priors
  double relaxation = kNotGiven;       // f of W + f (F(W) - W), F an iteration of the paper
  bool chooses_steps = false;          // f is that of StepControl instead
  int64_t iterations = 0;
  double tol = 0;  // stop when no probability moved by more than this; 0 = never
  bool normalize = false;
  bool roots = false;  // z <- sqrt(z + kLeastRoot) in tasks without a negative value
  Form form = Form::automatic;
};

struct GdParams {
  double lam = kNotGiven;
  double alpha = kNotGiven;
  double temperature = kNotGiven;
  double marginal_weight = kNotGiven;
  double entropy_order = kNotGiven;  // of both entropies: 1 = Shannon
  double sample_prior_weight = 0;    // lam_0; 0 without sample priors
  int64_t iterations = 0;
  double lr = kNotGiven;
  double adam_beta1 = kNotGiven;
  double adam_beta2 = kNotGiven;
  double eps = kNotGiven;
  double tol = 0;
  bool normalize = false;
};

enum class Method { adm, gd };

// What half an iteration needs on a part of a task, whose totals are known to the caller alone.
struct ShardParams {
  Method method = Method::adm;  // of the weighted half
  double temperature = kNotGiven;
  double support_weight = kNotGiven;  // of the samples in every sum: c_S and c_Q,
  double query_weight = kNotGiven;    // or lam / |S| and 1 / |Q|
  double power = 0;                   // 1 + alpha / beta of TIM-ADM; 0: no sum of p^power
  double alpha = kNotGiven;           // of TIM-GD
  double entropy_order = kNotGiven;   // of TIM-GD
  bool terms = false;                 // the sums for the loss terms, too
  bool exact = false;                 // q in the log domain, as p^power underflows
};

// A flat batch of tasks; see ops.cpp for the meaning of each array.
struct Batch {
  Dtype dtype = Dtype::f32;        // of features; half types are computed in float32
  const void* features = nullptr;  // [M, dim]
  int64_t pool_rows = 0;           // M
  int64_t dim = 0;
  const int64_t* rows = nullptr;           // [R] or null
  const int64_t* labels = nullptr;         // [R]
  const int64_t* offsets = nullptr;        // [T + 1]
  const int64_t* classes = nullptr;        // [T]
  const double* class_prior = nullptr;     // [sum_t K_t] or null: uniform
  const void* weights = nullptr;           // [sum_t K_t, dim] of the type computed in: the first W; or null
  const void* sample_weight = nullptr;     // [R] of the type computed in, for queries; or null: 1
  const void* sample_log_prior = nullptr;  // [sum_t N_t K_t] of that type, for queries; or null
  int64_t tasks = 0;                       // T
};

inline bool knows_samples(const Batch& batch) { return batch.sample_weight || batch.sample_log_prior; }

// Terms of the loss in a row of the history: CE, M, H and, with sample priors, D = -mean over Q of sum_k p_ik log prior_ik.
inline int64_t history_terms(const Batch& batch) { return batch.sample_log_prior ? 4 : 3; }

// Where results go; pointers without a type are of the type that features compute in. What is null is not computed.
struct Outputs {
  void* probs = nullptr;             // [sum_t N_t K_t]
  int64_t* predictions = nullptr;    // [R]
  void* weights = nullptr;           // [sum_t K_t, dim]
  int64_t* iterations = nullptr;     // [T]
  void* history = nullptr;           // [T, iterations + 1, history_terms]
  void* proportions = nullptr;       // [sum_t K_t] mean of p over the queries; 0 without any
  void* marginal_weights = nullptr;  // [T] m of the last iterations
  int64_t* status = nullptr;         // [T, 3]
};

// The loss of TIM and its gradient at given weights.
struct Gradient {
  const void* weights = nullptr;  // [sum_t K_t, dim]
  void* gradient = nullptr;       // [sum_t K_t, dim]
  void* terms = nullptr;          // [T, 3]
  void* loss = nullptr;           // [T]
  int64_t* status = nullptr;      // [T, 3]
};

// f(T{}) with the type T that features compute in.
template <class F>
auto with_real(Dtype dtype, F f) {
  return dtype == Dtype::f64 ? f(double{}) : f(float{});
}

}  // namespace tim_ext
