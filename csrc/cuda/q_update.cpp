// q_update on CUDA: the assignments of TIM-ADM from log p; the work is in core/steps.cu.
#include "common/step_operators.h"
#include "cuda/device.h"

namespace tim_ext {
namespace {

struct Cuda {
  static constexpr bool kTakesLayouts = false;

  template <class T>
  static void run(const QUpdate<T>& step, const Tensor& like) {
    const OnDeviceOf here(like);
    cuda::q_update(step, here.stream());
  }
};

}  // namespace
}  // namespace tim_ext

STABLE_TORCH_LIBRARY_IMPL(tim_ext, CUDA, m) {
  m.impl("q_update", TORCH_BOX(&tim_ext::QUpdateOperator<tim_ext::Cuda>::make));
  m.impl("q_update.out", TORCH_BOX(&tim_ext::QUpdateOperator<tim_ext::Cuda>::fill));
}
