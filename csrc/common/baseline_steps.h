// The arguments of the operators behind tim_ext.baselines, on B tasks of one shape: N samples, K classes. Classes come first in
// what has both: [B, K, N].
#pragma once

#include <cstdint>

#include "common/problem.h"
#include "common/steps.h"

namespace tim_ext {

// The steps of tim_ext/transforms.py, in the order of its STEPS.
enum class Change { center, l2, power, task_center, joint_center, min_max };
constexpr const char* kChangeNames[] = {"center", "l2", "power", "task_center", "joint_center", "min_max"};
constexpr int64_t kMostChanges = 16;

constexpr bool of_a_task(Change change) { return change >= Change::task_center; }

// The samples of each task, of the type computed in, after the steps of a transform; 0 for padding.
template <class T>
struct GatherTasks {
  StepShape shape;
  Dtype dtype = Dtype::f32;
  const void* features = nullptr;   // [M, d]
  const int64_t* rows = nullptr;    // [B, N]  not read where there is padding
  const int64_t* labels = nullptr;  // [B, N]
  Change changes[kMostChanges];
  int64_t count = 0;             // of changes
  const T* base_mean = nullptr;  // [d] for `center`
  T* out = nullptr;              // [B, N, d], or null for a method, which needs a task at a time
  int64_t* finite = nullptr;     // [B] whether all features of the task are
  void (*ask)(void*) = nullptr;  // what a method calls between its iterations: as Team::pause
  void* asked = nullptr;
  void pause() const {
    if (ask) ask(asked);
  }
};

// Methods on those samples: p, and the w_k that it is computed from. docs/baselines.md has their equations.
template <class T>
struct MethodOutputs {
  T* probs = nullptr;    // [B, K, N]
  T* weights = nullptr;  // [B, K, d]
};

template <class T>
struct BdCspn {
  GatherTasks<T> gather;
  double scale = kNotGiven, temperature = kNotGiven;
  MethodOutputs<T> out;
};

template <class T>
struct LaplacianShot {
  GatherTasks<T> gather;
  bool rectify = true;
  double scale = kNotGiven, lam = kNotGiven, tol = kNotGiven;
  int64_t neighbors = 0, iterations = 0;
  MethodOutputs<T> out;
  int64_t* ran = nullptr;  // [B] updates
};

template <class T>
struct PtMap {
  GatherTasks<T> gather;
  double lam = kNotGiven, step = kNotGiven, tol = kNotGiven;
  int64_t iterations = 0;
  MethodOutputs<T> out;
};

}  // namespace tim_ext
