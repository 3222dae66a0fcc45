// The kernels for AVX-512 (F, BW, DQ, VL).
#if defined(__x86_64__)
#include <immintrin.h>
#endif

#include <limits>
#include <type_traits>
#include <utility>

#include "cpu/core/kernels.h"

#if defined(__x86_64__) && defined(__GNUC__)

#pragma GCC target("avx512f,avx512bw,avx512dq,avx512vl,avx2,fma,bmi,bmi2,prefer-vector-width=512")

#define TIM_ISA avx512
#define TIM_TABLE kernels_avx512
#define TIM_VEC_BYTES 64
#include "cpu/core/kernels.inc"

#endif
