// q_update on the CPU: the assignments of TIM-ADM from log p.
#include "cpu/step_pieces.h"

namespace tim_ext {
namespace {

struct Cpu {
  template <class T>
  static void run(const QUpdate<T>& step, const Tensor&) {
    for_pieces<T>(step.shape, 1,
                  [&](int64_t task, int64_t, void* work) { kernels<T>().q_update(step, task, work); });
  }
};

}  // namespace
}  // namespace tim_ext

STABLE_TORCH_LIBRARY_IMPL(tim_ext, CPU, m) {
  m.impl("q_update", TORCH_BOX(&tim_ext::q_update_operator<tim_ext::Cpu>));
}
