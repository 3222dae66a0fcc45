// The kernels for whatever every machine of the architecture has.
#define TIM_ISA baseline
#define TIM_VEC_BYTES 16
#include "cpu/kernels/prelude.h"
#include "cpu/kernels/table-inl.h"
