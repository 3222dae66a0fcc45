// Which instruction set to use: the best one the machine has, or a lower one if TIM_EXT_CPU_CAPABILITY says so.
#if defined(__x86_64__)
#include <cpuid.h>
#endif

#include <cstdlib>
#include <cstring>

#include "cpu/core/kernels.h"

namespace tim_ext {
namespace {

enum class Isa { baseline, avx2, avx512 };

#if defined(__x86_64__) && defined(__GNUC__)
// F16C, which clang's __builtin_cpu_supports does not know in all versions.
bool converts_halves() {
  unsigned a, b, c, d;
  return __get_cpuid(1, &a, &b, &c, &d) && (c & bit_F16C);
}
#endif

Isa detect() {
#if defined(__x86_64__) && defined(__GNUC__)
  Isa best = Isa::baseline;
  __builtin_cpu_init();
  if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("bmi") &&
      __builtin_cpu_supports("bmi2") && converts_halves())
    best = Isa::avx2;
  if (best == Isa::avx2 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
      __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl"))
    best = Isa::avx512;
  const char* wanted = std::getenv("TIM_EXT_CPU_CAPABILITY");
  if (wanted && !std::strcmp(wanted, "baseline")) return Isa::baseline;
  if (wanted && !std::strcmp(wanted, "avx2") && best == Isa::avx512) return Isa::avx2;
  return best;
#else
  return Isa::baseline;
#endif
}

Isa isa() {
  static const Isa chosen = detect();
  return chosen;
}

}  // namespace

const char* cpu_capability() {
  switch (isa()) {
    case Isa::avx512:
      return "avx512";
    case Isa::avx2:
      return "avx2";
    default:
#if defined(__aarch64__)
      return "neon";  // which every machine of this architecture has
#else
      return "baseline";
#endif
  }
}

template <class T>
const Kernels<T>& kernels() {
#if defined(__x86_64__) && defined(__GNUC__)
  if (isa() == Isa::avx512) return avx512::table<T>();
  if (isa() == Isa::avx2) return avx2::table<T>();
#endif
  return baseline::table<T>();
}
template const Kernels<float>& kernels<float>();
template const Kernels<double>& kernels<double>();

}  // namespace tim_ext
