// q_update on the CPU: the assignments of TIM-ADM from log p.
#include "cpu/step_pieces.h"

namespace tim_ext {
namespace {

struct Cpu {
  static constexpr bool kTakesLayouts = true;

  template <class T>
  static void run(const Laid<QUpdate<T>>& step, const Tensor&) {
    for_step_tasks<T>(step.shape, [&](int64_t task, const Team& team, void* work) {
      kernels<T>().q_update(step, task, team, work);
    });
  }
};

}  // namespace
}  // namespace tim_ext

STABLE_TORCH_LIBRARY_IMPL(tim_ext, CPU, m) {
  m.impl("q_update", TORCH_BOX(&tim_ext::QUpdateOperator<tim_ext::Cpu>::make));
  m.impl("q_update.out", TORCH_BOX(&tim_ext::QUpdateOperator<tim_ext::Cpu>::fill));
}
