// In place of the kernels of an instruction set, TIM_ISA, that a build does without: half of the compile time is theirs.
#include <cstdlib>

#include "cpu/core/kernels.h"

namespace tim_ext {
namespace TIM_ISA {

template <class T>
const Kernels<T>& table() {
  std::abort();
}
template const Kernels<float>& table<float>();
template const Kernels<double>& table<double>();

}  // namespace TIM_ISA
}  // namespace tim_ext
