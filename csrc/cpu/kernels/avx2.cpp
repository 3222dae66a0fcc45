// The kernels for AVX2 and FMA.
#define TIM_ISA avx2
#define TIM_VEC_BYTES 32
#include "cpu/kernels/prelude.h"

#if defined(__x86_64__) && defined(__GNUC__)
#pragma GCC target("avx2,fma,bmi,bmi2")
#include "cpu/kernels/table-inl.h"
#endif
