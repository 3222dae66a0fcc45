// Numbers that every device uses.
#pragma once

#include <cstdint>

// A function for the host and the device. Always inline: kernels of a higher instruction set may use it without leaving
// their copy of it to the linker.
#ifdef __CUDACC__
#define TIM_HD __host__ __device__ __forceinline__
#else
#define TIM_HD inline __attribute__((always_inline))
#endif

namespace tim_ext {

constexpr double kLn2 = 0.693147180559945309417, kLog2e = 1.44269504088896340736;

template <class T>
struct Range;
template <>
struct Range<float> {
  static constexpr float smallest = 1.17549435e-38f;  // normal
  static constexpr float epsilon = 1.1920929e-7f;
  static constexpr float tiny = 1e-30f, huge = 1e30f;  // squared lengths in between are exact enough
};
template <>
struct Range<double> {
  static constexpr double smallest = 2.2250738585072014e-308;
  static constexpr double epsilon = 2.220446049250313e-16;
  static constexpr double tiny = 1e-280, huge = 1e280;
};

TIM_HD constexpr int64_t round_up(int64_t n, int64_t unit) { return (n + unit - 1) / unit * unit; }

}  // namespace tim_ext
