// w_update on CUDA: the next weights of TIM-ADM from p and the assignments; the work is in core/steps.cu.
#include "common/step_operators.h"
#include "cuda/device.h"

namespace tim_ext {
namespace {

struct Cuda {
  static constexpr bool kTakesLayouts = false;

  template <class T>
  static void run(const WUpdate<T>& step, const Tensor& like) {
    const OnDeviceOf here(like);
    cuda::w_update(step, here.stream());
  }
};

}  // namespace
}  // namespace tim_ext

STABLE_TORCH_LIBRARY_IMPL(tim_ext, CUDA, m) {
  m.impl("w_update", TORCH_BOX(&tim_ext::WUpdateOperator<tim_ext::Cuda>::make));
  m.impl("w_update.out", TORCH_BOX(&tim_ext::WUpdateOperator<tim_ext::Cuda>::fill));
}
