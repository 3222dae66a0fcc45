// distance_softmax on CUDA: p_ik = softmax_k(-tau/2 ||w_k - z_i||^2) and its logarithm; the work is in core/steps.cu.
#include "common/step_operators.h"
#include "cuda/device.h"

namespace tim_ext {
namespace {

struct Cuda {
  static constexpr bool kTakesLayouts = false;

  template <class T>
  static void run(const DistanceSoftmax<T>& step, const Tensor& like) {
    const OnDeviceOf here(like);
    cuda::distance_softmax(step, here.stream());
  }
};

}  // namespace
}  // namespace tim_ext

STABLE_TORCH_LIBRARY_IMPL(tim_ext, CUDA, m) {
  m.impl("distance_softmax", TORCH_BOX(&tim_ext::DistanceSoftmaxOperator<tim_ext::Cuda>::make));
  m.impl("distance_softmax.out", TORCH_BOX(&tim_ext::DistanceSoftmaxOperator<tim_ext::Cuda>::fill));
}
