// What the operators behind the baselines share on the CPU: checks, and tasks to threads.
#pragma once

#include <algorithm>

#include "common/baseline_steps.h"
#include "common/tensors.h"
#include "cpu/core/buffer.h"
#include "cpu/core/kernels.h"
#include "cpu/team.h"

namespace tim_ext {

// The arguments that all of them begin with, checked.
struct TaskArguments {
  const char* op;
  const Tensor &features, &rows, &labels;
  const std::optional<Tensor>& base_mean;
  StepShape shape;
  Dtype dtype;
  ScalarType real;
  Change changes[kMostChanges];
  int64_t count = 0;  // of changes
  mutable Interrupt interrupt;
  Tensor finite;

  TaskArguments(const char* name,
                const Tensor& x,                    // [M, d]
                const Tensor& r,                    // [B, N]
                const Tensor& y,                    // [B, N]
                const std::string& steps,           // "l2+.."
                const std::optional<Tensor>& mean,  // [d]
                int64_t classes)
      : op(name),
        features(x),
        rows(r),
        labels(y),
        base_mean(mean),
        dtype(dtype_of(name, x)),
        real(real_type(dtype)),
        interrupt(name),
        finite(check(classes)) {
    read(steps);
    const int64_t* const row = rows.const_data_ptr<int64_t>();
    const int64_t* const label = labels.const_data_ptr<int64_t>();
    for (int64_t i = 0; i < shape.tasks * shape.samples; ++i)
      STD_TORCH_CHECK(label[i] == kPadding || (row[i] >= 0 && row[i] < features.size(0)), op,
                      ": rows must be >= 0 and below ", features.size(0), ", the rows of features, got ",
                      row[i]);
  }

  template <class T>
  GatherTasks<T> gather() const {
    GatherTasks<T> g;
    g.shape = shape;
    g.dtype = dtype;
    g.features = features.const_data_ptr();
    g.rows = rows.const_data_ptr<int64_t>();
    g.labels = labels.const_data_ptr<int64_t>();
    std::copy(changes, changes + count, g.changes);
    g.count = count;
    if (base_mean) g.base_mean = base_mean->const_data_ptr<T>();
    g.finite = finite.mutable_data_ptr<int64_t>();
    g.ask = Interrupt::ask;
    g.asked = &interrupt;
    return g;
  }
  Tensor new_probs() const { return new_tensor(features, {shape.tasks, shape.classes, shape.samples}, real); }
  Tensor new_weights() const { return new_tensor(features, {shape.tasks, shape.classes, shape.dim}, real); }
  template <class T>
  static MethodOutputs<T> outputs(const Tensor& probs, const Tensor& weights) {
    return {probs.mutable_data_ptr<T>(), weights.mutable_data_ptr<T>()};
  }
  // f(zero of the type computed in)
  template <class F>
  void with_type(F&& f) const {
    if (real == ScalarType::Double)
      f(double{});
    else
      f(float{});
  }

 private:
  Tensor check(int64_t classes) {
    check_tensor(op, "features", features, features.scalar_type(), {-1, -1});
    STD_TORCH_CHECK(features.size(1) > 0, op, ": features must have at least one column, got ",
                    shape_of(features));
    check_tensor(op, "rows", rows, ScalarType::Long, {-1, -1});
    shape.tasks = rows.size(0);
    shape.samples = rows.size(1);
    shape.dim = features.size(1);
    shape.classes = classes;
    STD_TORCH_CHECK(classes >= 1, op, ": classes must be >= 1, got ", classes);
    check_tensor(op, "labels", labels, ScalarType::Long, {shape.tasks, shape.samples});
    if (base_mean) check_tensor(op, "base_mean", *base_mean, real, {shape.dim});
    return new_tensor(features, {shape.tasks}, ScalarType::Long);
  }
  void read(const std::string& steps) {
    for (size_t begin = 0; begin < steps.size();) {
      const size_t end = std::min(steps.find('+', begin), steps.size());
      const std::string name = steps.substr(begin, end - begin);
      const auto* const known = std::find(std::begin(kChangeNames), std::end(kChangeNames), name);
      STD_TORCH_CHECK(known != std::end(kChangeNames), op, ": steps has an unknown step, got '", name, "'");
      STD_TORCH_CHECK(count < kMostChanges, op, ": steps must be at most ", kMostChanges, ", got '", steps,
                      "'");
      changes[count] = Change(known - std::begin(kChangeNames));
      STD_TORCH_CHECK(base_mean || changes[count] != Change::center, op,
                      ": base_mean must be given with the step center");
      ++count;
      begin = end + 1;
    }
  }
};

// body(task, workspace) for every task, on torch's threads; each takes the next task when it is free.
template <class F>
void for_tasks(const TaskArguments& given, int64_t bytes, F body) {
  const int64_t tasks = given.shape.tasks;
  if (tasks == 0) return;
  const Team team = torch_team();
  const int64_t parts = std::min<int64_t>(team.threads, tasks);
  struct Work {
    F& body;
    Interrupt& interrupt;
    int64_t tasks, bytes, next;
  } work{body, given.interrupt, tasks, bytes, 0};
  auto take = [](void* context, int64_t) {
    Work& w = *static_cast<Work*>(context);
    Buffer buffer;
    void* const memory = buffer.at_least(std::max<int64_t>(w.bytes, 64));
    for (int64_t t; (t = __atomic_fetch_add(&w.next, 1, __ATOMIC_RELAXED)) < w.tasks;) {
      w.interrupt.pause();
      w.body(t, memory);
    }
  };
  if (parts == 1)
    take(&work, 0);
  else
    team.parallel(parts, take, &work);
}

}  // namespace tim_ext
