// The arguments of the step operators, on T tasks of equal shape: the same for every device. Of the coefficients, each has
// those of its hyper-parameters.
#pragma once

#include "common/equations.h"

namespace tim_ext {

struct StepShape {
  int64_t tasks = 0, samples = 0, classes = 0, dim = 0;
};

// Where the inputs of a task lie, in elements from a task, row or label to the next; the rows themselves are dense.
struct StepLayout {
  Dtype dtype = Dtype::f32;  // of the features; half types are computed in float32
  int64_t feature_task = 0, feature_row = 0;
  int64_t weight_task = 0, weight_row = 0;
  int64_t label_task = 0, label = 0;
};

// p_ik = softmax_k(-temperature / 2 ||w_k - z_i||^2), from
//   logit_ik - logit_iK = temperature ( (z_i - w_K) . (w_k - w_K) - ||w_k - w_K||^2 / 2 )
template <class T>
struct DistanceSoftmax {
  StepShape shape;
  AdmCoefficients<T> c;
  const void* features = nullptr;  // [T, N, d]
  const T* weights = nullptr;      // [T, K, d]
  T* probs = nullptr;              // [T, N, K]
  T* log_probs = nullptr;          // [T, N, K]
};

// q_ik = softmax_k(power log p_ik - offset_k) on queries, y_ik on support samples, 0 on padding
template <class T>
struct QUpdate {
  StepShape shape;
  AdmCoefficients<T> c;
  const T* log_probs = nullptr;     // [T, N, K]
  const int64_t* labels = nullptr;  // [T, N]
  T* assignments = nullptr;         // [T, N, K]
};

// w_k <- [ sum_i c_i (t_ik - p_ik) z_i + w_k sum_i c_i p_ik ] / sum_i c_i t_ik,   t = assignments, c_i = c_S or c_Q
// What all samples share costs no more than the rounding of w_k itself, so nothing is subtracted here.
template <class T>
struct WUpdate {
  StepShape shape;
  AdmCoefficients<T> c;
  const void* features = nullptr;   // [T, N, d]
  const T* weights = nullptr;       // [T, K, d]
  const T* probs = nullptr;         // [T, N, K]
  const T* assignments = nullptr;   // [T, N, K]
  const int64_t* labels = nullptr;  // [T, N]
  T* out = nullptr;                 // [T, K, d], which may be the weights
};

// A step on inputs in any layout. CUDA takes contiguous ones alone, and the step without the layout: with it among the
// parameters of a kernel, nvcc makes other code of its loops.
template <class Step>
struct Laid : Step {
  StepLayout layout;
};

}  // namespace tim_ext
