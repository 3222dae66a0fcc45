// The kernels for AVX2 and FMA.
#if defined(__x86_64__)
#include <immintrin.h>
#endif

#include <limits>
#include <type_traits>
#include <utility>

#include "cpu/core/kernels.h"

#if defined(__x86_64__) && defined(__GNUC__)

#pragma GCC target("avx2,fma,bmi,bmi2")

#define TIM_ISA avx2
#define TIM_TABLE kernels_avx2
#define TIM_VEC_BYTES 32
#include "cpu/core/kernels.inc"

#endif
