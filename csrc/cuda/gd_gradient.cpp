// gd_gradient on CUDA: the loss of TIM and its gradient at given weights; the work is in core/gd.cu. A task that the CPU
// would refuse gets NaN: to raise here would mean to wait for the device.
#include "common/step_operators.h"
#include "cuda/device.h"

namespace tim_ext {
namespace {

struct Cuda {
  static constexpr bool kTakesLayouts = false;

  static void run(const Batch& batch, const GdParams& params, Gradient out, const Tensor& features,
                  const Tensor& labels) {
    const OnDeviceOf here(features);
    const Tensor status = new_tensor(labels, {batch.tasks, 3}, ScalarType::Long);
    out.status = status.mutable_data_ptr<int64_t>();
    const Tensor workspace = new_workspace(features, cuda::gd_workspace(batch, params, here.device));
    cuda::gd_gradient(batch, params, out, workspace.mutable_data_ptr(), here.device, here.stream());
  }
};

}  // namespace
}  // namespace tim_ext

STABLE_TORCH_LIBRARY_IMPL(tim_ext, CUDA, m) {
  m.impl("gd_gradient", TORCH_BOX(&tim_ext::GdGradientOperator<tim_ext::Cuda>::make));
  m.impl("gd_gradient.out", TORCH_BOX(&tim_ext::GdGradientOperator<tim_ext::Cuda>::fill));
}
