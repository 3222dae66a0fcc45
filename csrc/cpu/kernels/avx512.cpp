// The kernels for AVX-512 (F, BW, DQ, VL).
#define TIM_ISA avx512
#define TIM_VEC_BYTES 64
#include "cpu/kernels/prelude.h"

#if defined(__x86_64__) && defined(__GNUC__)
#pragma GCC target("avx512f,avx512bw,avx512dq,avx512vl,avx2,fma,bmi,bmi2,prefer-vector-width=512")
#include "cpu/kernels/table-inl.h"
#endif
