// gd_gradient on the CPU: the loss of TIM and its gradient at given weights; the work is in core/gd.cpp.
#include "common/step_operators.h"
#include "cpu/core/core.h"
#include "cpu/team.h"

namespace tim_ext {
namespace {

struct Cpu {
  static constexpr bool kTakesLayouts = false;

  static void run(const Batch& batch, const GdParams& params, Gradient out, const Tensor&, const Tensor&) {
    std::vector<int64_t> status(size_t(batch.tasks) * 3);
    out.status = status.data();
    Interrupt interrupt("gd_gradient");
    gd_gradient(batch, params, out, asking(interrupt, torch_team()));
    for (int64_t t = 0; t < batch.tasks; ++t)
      STD_TORCH_CHECK(status[size_t(t) * 3] == 0, "gd_gradient: task ", t,
                      " is refused: every class needs a support sample, labels must be below ",
                      batch.classes[t], " and features finite");
  }
};

}  // namespace
}  // namespace tim_ext

STABLE_TORCH_LIBRARY_IMPL(tim_ext, CPU, m) {
  m.impl("gd_gradient", TORCH_BOX(&tim_ext::GdGradientOperator<tim_ext::Cpu>::make));
  m.impl("gd_gradient.out", TORCH_BOX(&tim_ext::GdGradientOperator<tim_ext::Cpu>::fill));
}
