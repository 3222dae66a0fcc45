// The machine's multiply-add peak, for the percentage that benchmarks report.
#pragma once

#include "cpu/kernels/prelude.h"
#include "cpu/kernels/vectors-inl.h"

namespace tim_ext {
namespace TIM_ISA {

// `rounds` rounds of 12 independent multiply-adds of whole vectors; returns how many scalar ones that was.
template <class T>
int64_t multiply_add_rounds(int64_t rounds, T* sink) {
  constexpr int chains = 12;
  Vec<T> acc[chains];
  for (int i = 0; i < chains; ++i) acc[i] = splat<T>(T(i));
  const Vec<T> a = splat<T>(T(0.5)), b = splat<T>(*sink);
  for (int64_t r = 0; r < rounds; ++r)
#pragma GCC unroll 16
    for (int i = 0; i < chains; ++i) acc[i] = acc[i] * a + b;
  Vec<T> sum = Vec<T>{};
  for (int i = 0; i < chains; ++i) sum += acc[i];
  *sink = reduce_add<T>(sum);
  return rounds * chains * kWidth<T>;
}

}  // namespace TIM_ISA
}  // namespace tim_ext
