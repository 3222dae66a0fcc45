// The kernels for whatever every machine of the architecture has.
#if defined(__x86_64__)
#include <immintrin.h>
#endif

#include <limits>
#include <type_traits>
#include <utility>

#include "cpu/core/kernels.h"

#define TIM_ISA baseline
#define TIM_TABLE kernels_baseline
#define TIM_VEC_BYTES 16
#include "cpu/core/kernels.inc"
