// The kernels for AVX2, FMA and F16C.
#define TIM_ISA avx2
#define TIM_VEC_BYTES 32
#include "cpu/kernels/prelude.h"

#if defined(__x86_64__) && defined(__GNUC__)
#if defined(__clang__)
#pragma clang attribute push(__attribute__((target("avx2,fma,f16c,bmi,bmi2"))), apply_to = function)
#else
#pragma GCC target("avx2,fma,f16c,bmi,bmi2")
#endif
#include "cpu/kernels/table-inl.h"
#if defined(__clang__)
#pragma clang attribute pop
#endif
#endif
