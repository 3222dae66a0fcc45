// Sizes that come from a caller, in arithmetic that does not wrap. Free of torch: tests/fuzz calls it as it is.
#pragma once

#include <cstdint>
#include <string>

namespace tim_ext {

constexpr int64_t kMostIterations = int64_t(1) << 53;

// a * b into *out, a + b into *out; false if it does not fit.
inline bool multiply(int64_t a, int64_t b, int64_t* out) { return !__builtin_mul_overflow(a, b, out); }
inline bool add(int64_t a, int64_t b, int64_t* out) { return !__builtin_add_overflow(a, b, out); }

// The totals of a flat batch.
struct BatchSizes {
  int64_t probs = 0;    // sum_t N_t K_t
  int64_t classes = 0;  // sum_t K_t
};

// Whether `tasks` tasks of the samples offsets[t] .. offsets[t + 1] and classes[t] classes are a batch of `samples`
// samples: "" and the sizes, or what is wrong with which argument. After "", every offset lies in 0 .. samples.
inline std::string check_layout(const int64_t* offsets,  // [tasks + 1]
                                const int64_t* classes,  // [tasks]
                                int64_t tasks, int64_t samples, BatchSizes* sizes) {
  const auto number = [](int64_t value) { return std::to_string(value); };
  if (offsets[0] != 0 || offsets[tasks] != samples)
    return "offsets must run from 0 to the number of labels (" + number(samples) + "), got " +
           number(offsets[0]) + " to " + number(offsets[tasks]);
  // Before any difference of two of them is taken.
  for (int64_t t = 0; t < tasks; ++t)
    if (offsets[t + 1] < offsets[t])
      return "offsets must not decrease, got " + number(offsets[t]) + " before " + number(offsets[t + 1]) +
             " (task " + number(t) + ")";
  *sizes = BatchSizes();
  for (int64_t t = 0; t < tasks; ++t) {
    if (classes[t] < 1)
      return "classes must be >= 1, got " + number(classes[t]) + " (task " + number(t) + ")";
    int64_t probs = 0;
    if (!multiply(offsets[t + 1] - offsets[t], classes[t], &probs) ||
        !add(sizes->probs, probs, &sizes->probs) || !add(sizes->classes, classes[t], &sizes->classes))
      return "classes must give sizes below 2^63, got " + number(classes[t]) + " (task " + number(t) + ")";
  }
  return "";
}

}  // namespace tim_ext
