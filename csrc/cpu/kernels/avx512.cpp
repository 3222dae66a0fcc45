// The kernels for AVX-512 (F, BW, DQ, VL).
#define TIM_ISA avx512
#define TIM_VEC_BYTES 64
#include "cpu/kernels/prelude.h"

#if defined(__x86_64__) && defined(__GNUC__)
#if defined(__clang__)
#pragma clang attribute push( \
    __attribute__((target("avx512f,avx512bw,avx512dq,avx512vl,avx2,fma,bmi,bmi2"))), apply_to = function)
#else
#pragma GCC target("avx512f,avx512bw,avx512dq,avx512vl,avx2,fma,bmi,bmi2,prefer-vector-width=512")
#endif
#include "cpu/kernels/table-inl.h"
#if defined(__clang__)
#pragma clang attribute pop
#endif
#endif
