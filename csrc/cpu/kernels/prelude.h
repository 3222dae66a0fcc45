// What the kernels use that is not compiled once per instruction set. A file of kernels/*.cpp defines TIM_ISA (a
// namespace) and TIM_VEC_BYTES, includes this file, switches the compiler's target (GCC and clang each have
// a pragma for it) and includes table-inl.h.
//
// The *-inl.h include each other and this file, never another header: what is included after the switch is compiled
// for that instruction set. Nor may they instantiate a standard container or any other shared template with code of
// its own: the linker could then pick this instruction set's copy for everyone.
#pragma once

#if defined(__x86_64__)
#include <immintrin.h>
#elif defined(__aarch64__)
#include <arm_neon.h>
#endif

#include <cstdint>
#include <limits>
#include <optional>
#include <type_traits>
#include <utility>

#include "cpu/core/kernels.h"

#define TIM_INLINE inline __attribute__((always_inline))
#define TIM_LAMBDA_INLINE __attribute__((always_inline))

// Vector registers of the instruction set.
#if TIM_VEC_BYTES == 64 || defined(__aarch64__)
#define TIM_REGISTERS 32
#else
#define TIM_REGISTERS 16
#endif
