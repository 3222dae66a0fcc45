// w_update on the CPU: the next weights of TIM-ADM from p and the assignments.
#include "cpu/step_pieces.h"

namespace tim_ext {
namespace {

struct Cpu {
  static constexpr bool kTakesLayouts = true;

  template <class T>
  static void run(const Laid<WUpdate<T>>& step, const Tensor&) {
    for_step_tasks<T>(step.shape, [&](int64_t task, const Team& team, void* work) {
      kernels<T>().w_update(step, task, team, work);
    });
  }
};

}  // namespace
}  // namespace tim_ext

STABLE_TORCH_LIBRARY_IMPL(tim_ext, CPU, m) {
  m.impl("w_update", TORCH_BOX(&tim_ext::WUpdateOperator<tim_ext::Cpu>::make));
  m.impl("w_update.out", TORCH_BOX(&tim_ext::WUpdateOperator<tim_ext::Cpu>::fill));
}
